//! The wire: discovery sessions, subscriptions, nonces and flow control; bodies are opaque.
