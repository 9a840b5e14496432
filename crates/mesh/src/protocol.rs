//! Application protocols.

/// What a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/2 in plain text.
    Http2,
    /// gRPC.
    Grpc,
    /// gRPC-Web.
    GrpcWeb,
    /// HTTP in TLS that we do not terminate.
    Https,
    /// TLS that we do not terminate.
    Tls,
    /// Bytes.
    Tcp,
    /// MongoDB.
    Mongo,
    /// Redis.
    Redis,
    /// MySQL.
    MySql,
    /// Datagrams; not proxied.
    Udp,
    /// HTTP proxy (CONNECT and absolute URLs).
    HttpProxy,
    /// HBONE.
    Hbone,
    /// Not said: detected on each connection.
    Auto,
}

impl Protocol {
    /// HTTP that we can route.
    pub fn is_http(self) -> bool {
        matches!(
            self,
            Self::Http | Self::Http2 | Self::Grpc | Self::GrpcWeb | Self::HttpProxy | Self::Hbone
        )
    }

    /// HTTP/2 framing.
    pub fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc | Self::GrpcWeb)
    }

    /// gRPC of either kind.
    pub fn is_grpc(self) -> bool {
        matches!(self, Self::Grpc | Self::GrpcWeb)
    }

    /// Carried as bytes over TCP.
    pub fn is_tcp(self) -> bool {
        matches!(
            self,
            Self::Tcp | Self::Https | Self::Tls | Self::Mongo | Self::Redis | Self::MySql
        )
    }

    /// TLS that we do not terminate.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    /// Detected on each connection.
    pub fn is_auto(self) -> bool {
        self == Self::Auto
    }
}
