//! From the facts of the mesh and the scope of a proxy to the intermediate representation.
