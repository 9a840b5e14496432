//! What a proxy is to be given, as plain data that knows nothing of Envoy's wire format.
