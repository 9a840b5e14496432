//! An object as the store keeps it: key, metadata, spec and where it was written.

use crate::Text;
use std::fmt;

use litemap::LiteMap;
use serde::{Serialize, Serializer};

use crate::cluster::ClusterId;
use crate::kind::Kind;
use crate::store::SourceId;
use crate::{core, extensions, networking, security, telemetry};

/// What names an object. The namespace of a cluster-scoped object is empty. Ordered by kind, cluster, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The kind.
    pub kind: Kind,
    /// The cluster it is in.
    pub cluster: ClusterId,
    /// The namespace.
    pub namespace: Text,
    /// The name.
    pub name: Text,
}

impl ObjectKey {
    /// The key of an object of the config cluster.
    pub fn new(kind: Kind, namespace: impl Into<Text>, name: impl Into<Text>) -> Self {
        Self {
            kind,
            cluster: ClusterId::CONFIG,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The same object of some cluster.
    #[must_use]
    pub fn of(mut self, cluster: ClusterId) -> Self {
        self.cluster = cluster;
        self
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{}/{}", self.kind, self.name)?;
        } else {
            write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)?;
        }
        match self.cluster.name() {
            Some(cluster) => write!(f, "@{cluster}"),
            None => Ok(()),
        }
    }
}

impl Serialize for ObjectKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Labels or annotations: few, and there are as many of these maps as there are endpoints.
pub type Labels = LiteMap<Text, Text>;

/// What Kubernetes knows of every object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Meta {
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: Labels,
    /// Creation time in seconds since 1970; absent in most files.
    pub created: Option<i64>,
    /// Set by the store: greater than that of every earlier change.
    pub resource_version: u64,
    /// Set by the store: whose object it is.
    #[serde(skip)]
    pub source: SourceId,
    /// The owner that is marked as controller.
    pub owner: Option<OwnerRef>,
}

/// The controller an object belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerRef {
    /// For instance `ReplicaSet`.
    pub kind: Text,
    /// Its name, in the namespace of the object.
    pub name: Text,
    /// For instance `apps/v1`.
    pub api_version: Text,
}

/// Where a document begins, or a field is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Origin {
    /// Path of the file.
    pub file: Text,
    /// Line, counted from one.
    pub line: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One object.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Object {
    /// Its name.
    pub key: ObjectKey,
    /// Its metadata.
    pub meta: Meta,
    /// What it says.
    pub spec: Spec,
    /// Where it was written, if it was written in a file.
    pub origin: Option<Origin>,
}

impl Object {
    /// The kind.
    pub const fn kind(&self) -> Kind {
        self.key.kind
    }

    /// The spec as `T`, if the object is of that kind.
    pub fn get<T: SpecOf>(&self) -> Option<&T> {
        T::from_spec(&self.spec)
    }

    /// Whether both say the same, wherever and whenever they were written.
    pub fn same_content(&self, other: &Self) -> bool {
        self.key == other.key
            && self.spec == other.spec
            && self.meta.labels == other.meta.labels
            && self.meta.annotations == other.meta.annotations
            && self.meta.created == other.meta.created
            && self.meta.owner == other.meta.owner
    }
}

/// A type that is the spec of one kind.
pub trait SpecOf: Sized {
    /// The kind whose spec this is.
    const KIND: Kind;
    /// The spec, if it is of this kind.
    fn from_spec(spec: &Spec) -> Option<&Self>;
}

macro_rules! specs {
    ($($variant:ident($ty:ty),)*) => {
        /// The content of an object, by kind. Boxed, so that small kinds do not pay for large ones.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(untagged)]
        #[expect(missing_docs, reason = "each variant is the Kubernetes kind of that name")]
        pub enum Spec {
            $($variant(Box<$ty>),)*
        }

        impl Spec {
            /// The kind this is the spec of.
            pub const fn kind(&self) -> Kind {
                match self {
                    $(Self::$variant(_) => Kind::$variant,)*
                }
            }
        }

        $(
            impl SpecOf for $ty {
                const KIND: Kind = Kind::$variant;
                fn from_spec(spec: &Spec) -> Option<&Self> {
                    match spec {
                        Spec::$variant(spec) => Some(spec),
                        _ => None,
                    }
                }
            }

            impl From<$ty> for Spec {
                fn from(spec: $ty) -> Self {
                    Self::$variant(Box::new(spec))
                }
            }
        )*
    };
}

specs! {
    Namespace(core::Namespace),
    Node(core::Node),
    Service(core::Service),
    EndpointSlice(core::EndpointSlice),
    Endpoints(core::Endpoints),
    Pod(core::Pod),
    Secret(core::Secret),
    ConfigMap(core::ConfigMap),
    ServiceAccount(core::ServiceAccount),
    VirtualService(networking::VirtualService),
    DestinationRule(networking::DestinationRule),
    Gateway(networking::Gateway),
    ServiceEntry(networking::ServiceEntry),
    Sidecar(networking::Sidecar),
    WorkloadEntry(networking::WorkloadEntry),
    WorkloadGroup(networking::WorkloadGroup),
    EnvoyFilter(networking::EnvoyFilter),
    ProxyConfig(networking::ProxyConfig),
    PeerAuthentication(security::PeerAuthentication),
    RequestAuthentication(security::RequestAuthentication),
    AuthorizationPolicy(security::AuthorizationPolicy),
    Telemetry(telemetry::Telemetry),
    WasmPlugin(extensions::WasmPlugin),
    TrafficExtension(extensions::TrafficExtension),
}
