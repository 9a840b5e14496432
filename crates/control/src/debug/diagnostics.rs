//! `/debug/diagnostics`: a table for people, JSON for the rest.

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use pilotfish_config::Diagnostic;
use serde::Deserialize;

use super::{document, escape};
use crate::http::{Pages, html, json, wants_html};
use crate::serve::gather;

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    format: Option<String>,
}

pub(super) async fn page(
    State(pages): State<Pages>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Response {
    // A page without findings says that all is well; that must not come of a failure.
    let diagnostics = match gather(&pages.plane).await {
        Ok(diagnostics) => diagnostics,
        Err(error) => return failed(&error),
    };
    if wants_html(&headers, asked.format.as_deref()) {
        html(table(&diagnostics))
    } else {
        json(&diagnostics)
    }
}

fn failed(error: &anyhow::Error) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}\n")).into_response()
}

fn table(diagnostics: &[Diagnostic]) -> String {
    if diagnostics.is_empty() {
        return document(
            "Diagnostics",
            "<p>Nothing is wrong with the configuration.</p>",
        );
    }
    let rows: String = diagnostics.iter().map(row).collect();
    let head = "<tr><th>Severity</th><th>Object</th><th>Field</th><th>What is wrong</th><th>What follows</th><th>Where</th><th>Code</th></tr>";
    document(
        "Diagnostics",
        &format!(
            "<p>{} findings</p>\n<table>\n{head}\n{rows}</table>",
            diagnostics.len()
        ),
    )
}

fn row(diagnostic: &Diagnostic) -> String {
    let shown = |part: Option<String>| part.map_or_else(String::new, |text| escape(&text));
    format!(
        "<tr><td class=\"{0}\">{0}</td><td>{1}</td><td><code>{2}</code></td><td>{3}</td><td>{4}</td><td>{5}</td><td><code>{6}</code></td></tr>\n",
        diagnostic.severity,
        shown(diagnostic.object.as_ref().map(ToString::to_string)),
        escape(&diagnostic.field),
        escape(&diagnostic.reason),
        escape(&diagnostic.effect),
        shown(diagnostic.origin.as_ref().map(ToString::to_string)),
        escape(diagnostic.code),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_the_table() {
        let text =
            table(&[Diagnostic::error("x", "<script>alert(1)</script>", "left out").at("a<b")]);
        assert!(
            text.contains("&lt;script&gt;") && !text.contains("<script>"),
            "{text}"
        );
        assert!(text.contains("<td class=\"error\">error</td>"));
        assert!(table(&[]).contains("Nothing is wrong"));
    }
}
