//! Keeps translated pieces up to date: rebuilds what a change touched and shares the rest.
