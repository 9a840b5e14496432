//! From the intermediate representation to encoded Envoy resources.
