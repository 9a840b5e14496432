//! Names that several resources share.

/// A string that is shared, not copied, and that takes one word to refer to.
pub type Text = arcstr::ArcStr;

/// Which upstream a route or filter chain leads to. The emitter spells it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterName {
    /// Whatever address the connection was meant for.
    Passthrough,
    /// Nowhere.
    BlackHole,
    /// The local application at the address the connection was meant for.
    InboundPassthrough,
    /// The same for IPv6.
    InboundPassthroughV6,
    /// The local application on a port.
    Inbound {
        /// Port of the application.
        port: u16,
    },
    /// A service of the mesh.
    Outbound {
        /// Port of the service.
        port: u16,
        /// Subset, empty for the whole service.
        subset: Text,
        /// Host of the service.
        host: Text,
    },
    /// A service of the mesh, for connections of another network that are passed on by the server name they carry.
    BySni {
        /// Port of the service.
        port: u16,
        /// Subset, empty for the whole service.
        subset: Text,
        /// Host of the service.
        host: Text,
    },
    /// Whatever host the request names, resolved when it comes.
    AnyHost,
}

impl ClusterName {
    /// The same service for connections of another network; other upstreams are what they are.
    #[must_use]
    pub fn by_sni(&self) -> Self {
        match self {
            Self::Outbound { port, subset, host } => Self::BySni {
                port: *port,
                subset: subset.clone(),
                host: host.clone(),
            },
            other => other.clone(),
        }
    }
}
