//! What the fuzz targets do, as plain functions, so that a found input can be replayed by a test.
#![forbid(unsafe_code)]

/// Tells what an input does, if `FUZZ_TRACE` is set: bytes alone explain nothing.
#[macro_export]
macro_rules! trace {
    ($($arg:tt)*) => {
        if $crate::tracing() {
            eprintln!($($arg)*);
        }
    };
}

/// Whether inputs are to be explained.
pub fn tracing() -> bool {
    static ON: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::env::var_os("FUZZ_TRACE").is_some());
    *ON
}

pub mod dice;
pub mod documents;
pub mod driver;
pub mod mutations;
pub mod pipeline;
pub mod requests;
