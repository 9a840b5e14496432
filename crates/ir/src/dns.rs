//! Names that a proxy answers for its application.

use crate::Text;

/// One name and its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// Fully qualified name.
    pub host: Text,
    /// Addresses.
    pub addresses: Vec<Text>,
    /// Who declared it: `Kubernetes` or `External`.
    pub registry: Text,
    /// Short name, if the namespace may leave out the rest.
    pub short: Text,
    /// Namespace of the short name.
    pub namespace: Text,
}
