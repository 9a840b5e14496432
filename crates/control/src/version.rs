//! What this build is.

use serde_json::{Value, json};

use crate::cli::VersionArgs;

/// The release.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit, where the build was told (`PILOTFISH_REVISION` at build time).
pub(crate) const REVISION: &str = match option_env!("PILOTFISH_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

/// One line, as istiod's `/version`.
pub(crate) fn line() -> String {
    format!("pilotfish-{VERSION}-{REVISION}")
}

/// The fields that istiod's `version -o json` has, where they mean something here.
fn info() -> Value {
    json!({"version": VERSION, "revision": REVISION, "status": build(), "tag": VERSION, "product": "pilotfish"})
}

pub(crate) const fn build() -> &'static str {
    if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    }
}

/// The text of `pilotfish version`.
pub(crate) fn describe(args: &VersionArgs) -> String {
    match args.output.as_str() {
        "json" => format!("{:#}", json!({"clientVersion": info()})),
        _ if args.json => format!("{:#}", json!({"clientVersion": info()})),
        "yaml" => format!(
            "clientVersion:\n  version: {VERSION}\n  revision: {REVISION}\n  status: {}\n  tag: {VERSION}\n  product: pilotfish",
            build()
        ),
        _ if args.short => VERSION.to_owned(),
        _ => format!(
            "pilotfish {VERSION} (revision {REVISION}, {} build)",
            build()
        ),
    }
}
