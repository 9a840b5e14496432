//! Protobuf JSON for messages known only by name.

