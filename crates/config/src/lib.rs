//! What users wrote: kinds, strict parsing, diagnostics and the store.
