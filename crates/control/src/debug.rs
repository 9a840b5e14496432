//! The debug pages: what the control plane knows, and what each proxy was given.

mod config;
pub(crate) mod config_dump;
mod diagnostics;
pub(crate) mod proxies;
mod push;
mod registry;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get};
use pilotfish_mesh::Text;

use crate::http::{Pages, html, json};
use crate::kubernetes;
use crate::scribe;
use crate::version;
use crate::writer::Input;

/// The proxies that somebody may see. A request without it comes from somebody who may see all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Visible {
    /// All of them.
    Everything,
    /// Those of one namespace.
    Namespace(Text),
}

/// One page: path, a line about it, and how it is served.
struct Page {
    path: &'static str,
    about: &'static str,
    serve: fn() -> MethodRouter<Pages>,
}

/// All of them. A function, since a constant that `list` reads could not name `list`.
fn all() -> Vec<Page> {
    vec![
        Page {
            path: "/debug/diagnostics",
            about: "What is wrong with the configuration, and what follows from it",
            serve: || get(diagnostics::page),
        },
        Page {
            path: "/debug/connections",
            about: "Connected proxies",
            serve: || get(proxies::connections),
        },
        Page {
            path: "/debug/adsz",
            about: "Connected proxies with what they say about themselves and what they watch; ?push=true pushes to all",
            serve: || get(proxies::adsz),
        },
        Page {
            path: "/debug/syncz",
            about: "Which response each proxy was sent and has acknowledged, by type; ?namespace= for some",
            serve: || get(proxies::syncz),
        },
        Page {
            path: "/debug/config_dump",
            about: "What a proxy was given, as Envoy's own config_dump shows it: ?proxyID=, &include_eds, &types=cds,rds",
            serve: || get(config_dump::page),
        },
        Page {
            path: "/debug/edsz",
            about: "The endpoints a proxy was given: ?proxyID=",
            serve: || get(config_dump::endpoints),
        },
        Page {
            path: "/debug/ndsz",
            about: "The DNS names a proxy was given: ?proxyID=",
            serve: || get(config_dump::names),
        },
        Page {
            path: "/debug/ecdsz",
            about: "The configuration of filters a proxy was given: ?proxyID=",
            serve: || get(config_dump::filters),
        },
        Page {
            path: "/debug/registryz",
            about: "Services, whoever declared them",
            serve: || get(registry::services),
        },
        Page {
            path: "/debug/endpointz",
            about: "Endpoints of services",
            serve: || get(registry::endpoints),
        },
        Page {
            path: "/debug/endpointShardz",
            about: "The same as endpointz",
            serve: || get(registry::endpoints),
        },
        Page {
            path: "/debug/configz",
            about: "Objects as they were understood: Istio's kinds, or ?kind=Service for one; Secrets without their values",
            serve: || get(config::objects),
        },
        Page {
            path: "/debug/resourcesz",
            about: "Kinds of objects that are read",
            serve: || get(config::kinds),
        },
        Page {
            path: "/debug/mesh",
            about: "The mesh configuration in effect",
            serve: || get(config::mesh),
        },
        Page {
            path: "/debug/networkz",
            about: "The networks of the mesh",
            serve: || get(config::networks),
        },
        Page {
            path: "/debug/push",
            about: "The last pushes: which fields of which objects caused them, what was translated and sent because of it, how \
                    long that took; and the noisiest objects. ?format=text for a table",
            serve: || get(push::page),
        },
        Page {
            path: "/debug/push_status",
            about: "The last pushes in brief: when, why, how long they waited",
            serve: || get(push_status),
        },
        Page {
            path: "/debug/kubernetes",
            about: "The watches of the cluster: which kinds are read, which are not and why",
            serve: || get(kubernetes::page),
        },
        Page {
            path: "/debug/clusterz",
            about: "The clusters that are read, and which Secrets name them",
            serve: || get(kubernetes::clusters),
        },
        Page {
            path: "/debug/writers",
            about: "What is written to the cluster: by which replica, how much, and what could not be",
            serve: || get(scribe::page),
        },
        Page {
            path: "/debug/loss_guard",
            about: "Whether a push is held back because most services are gone; POST confirms the loss, and it is pushed",
            serve: || get(loss_guard).post(confirm_loss),
        },
        Page {
            path: "/debug/list",
            about: "The names of these pages as JSON",
            serve: || get(list),
        },
    ]
}

/// All debug pages.
pub(crate) fn router() -> Router<Pages> {
    let index = Router::new()
        .route("/debug", get(index))
        .route("/debug/", get(index));
    all().iter().fold(index, |router, page| {
        router.route(page.path, (page.serve)())
    })
}

async fn index() -> Response {
    let row = |page: Page| {
        format!(
            "<tr><td><a href=\"{0}\">{0}</a></td><td>{1}</td></tr>\n",
            page.path,
            escape(page.about)
        )
    };
    let rows = all().into_iter().map(row).collect::<Vec<_>>().concat();
    html(document(
        "Debug pages",
        &format!("<table>\n<tr><th>Page</th><th>What it shows</th></tr>\n{rows}</table>"),
    ))
}

async fn list() -> Response {
    let names: Vec<_> = all()
        .iter()
        .filter_map(|page| page.path.strip_prefix("/debug/"))
        .filter(|name| *name != "list")
        .collect();
    json(&names)
}

async fn push_status(State(pages): State<Pages>) -> Response {
    json(&pages.plane.history.show())
}

async fn loss_guard(State(pages): State<Pages>) -> Response {
    let held = pages.plane.held_back();
    json(&serde_json::json!({"holding": held.is_some(), "finding": held}))
}

async fn confirm_loss(State(pages): State<Pages>) -> Response {
    if pages.plane.held_back().is_none() {
        return (StatusCode::CONFLICT, "nothing is held back\n").into_response();
    }
    match pages.inputs.send(Input::ConfirmLoss).await {
        Ok(()) => "the loss is confirmed and pushed\n".into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response(),
    }
}

/// A whole HTML page around some content, which must be HTML already.
fn document(title: &str, content: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title} - Pilotfish</title>\n<style>\n\
         body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em; color: #1b1f24; background: #fff }}\n\
         table {{ border-collapse: collapse }} th, td {{ text-align: left; vertical-align: top; padding: .35em .8em; border-bottom: 1px solid #d8dee4 }}\n\
         th {{ background: #f3f5f7 }} td.error {{ color: #b3261e; font-weight: 600 }} td.warning {{ color: #8a5a00 }} code {{ font-size: 13px }}\n\
         @media (prefers-color-scheme: dark) {{ body {{ color: #e6e9ec; background: #15181b }} th {{ background: #22272c }} th, td {{ border-color: #343b42 }} a {{ color: #7cb7ff }} td.error {{ color: #ff9a92 }} td.warning {{ color: #f0c36d }} }}\n\
         </style></head>\n<body>\n<h1>{title}</h1>\n{content}\n<p>{}</p>\n</body></html>\n",
        escape(&version::line())
    )
}

/// Text as HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_text_is_not_markup() {
        assert_eq!(
            escape("<a href=\"x\">'&'"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;"
        );
    }

    #[test]
    fn every_page_has_a_path_of_its_own() {
        let _ = router();
    }
}
