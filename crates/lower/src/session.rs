//! Sessions that stay with one endpoint, as labels of a service ask for them.

use pilotfish_ir::route::Session;
use pilotfish_mesh::{Reader, Service};

use crate::{Text, chain};

/// Whether proxies keep sessions at all.
pub(crate) fn kept(reader: &Reader<'_>) -> bool {
    chain::feature(reader, "PILOT_ENABLE_PERSISTENT_SESSION_FILTER", false)
}

/// How sessions of a service are kept. A cookie is written `name` or `name:path`.
pub(crate) fn of(reader: &Reader<'_>, service: &Service) -> Option<Session> {
    if !kept(reader) {
        return None;
    }
    let settings = reader.settings();
    if let Some(cookie) = service.session_cookie(settings) {
        let (name, path) = cookie.split_once(':').unwrap_or((cookie, "/"));
        return Some(Session::Cookie {
            name: Text::from(name),
            path: Text::from(path),
        });
    }
    let header = service.session_header(settings)?;
    Some(Session::Header(Text::from(header)))
}
