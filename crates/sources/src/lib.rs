//! Where objects come from: directories of YAML, and later Kubernetes and MCP.
