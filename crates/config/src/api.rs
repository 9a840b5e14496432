//! The two macros every API type is declared with.
//!
//! They keep the definition files a plain list of fields: each field may be left out when reading, and is left out when
//! writing if it has its default value.

/// Whether serialising `value` would say nothing.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Declares a message of the API: names are camelCase on the wire, absent fields take their default.
macro_rules! api {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* pub $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Default, serde::Deserialize, serde::Serialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $($(#[$fmeta])* #[serde(skip_serializing_if = "crate::api::is_default")] pub $field: $ty,)*
        }
    };
}

/// Declares an enumeration of the API with the names it has on the wire; the first value is the default.
macro_rules! api_enum {
    ($(#[$meta:meta])* $name:ident { $first:ident = $first_wire:literal, $($variant:ident = $wire:literal,)* }) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Deserialize, serde::Serialize,
        )]
        pub enum $name {
            #[default]
            #[serde(rename = $first_wire)]
            $first,
            $(#[serde(rename = $wire)] $variant,)*
        }

        impl $name {
            /// The name on the wire.
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::$first => $first_wire,
                    $(Self::$variant => $wire,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use {api, api_enum};
