//! What the mesh means: services, workloads, endpoints and rules, kept as facts that change one by one.
