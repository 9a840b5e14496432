//! `exportTo` that reaches nobody.

use pilotfish_config::{Object, Spec};

use crate::report::Report;
use crate::scene::Scene;

/// Namespaces that an object is exported to and that are not there.
pub(crate) fn namespaces<'w>(scene: &Scene<'w>, object: &'w Object, report: &mut Report) {
    let words = match &object.spec {
        Spec::VirtualService(spec) => &spec.export_to,
        Spec::DestinationRule(spec) => &spec.export_to,
        Spec::ServiceEntry(spec) => &spec.export_to,
        _ => return,
    };
    if words.iter().any(|word| word == "~") && !words.iter().any(|word| word == "*") {
        report.note(
            ("exported-to-nobody", object, "spec.exportTo"),
            "~ exports to nobody",
            "it has no effect",
        );
        return;
    }
    for (i, word) in words.iter().enumerate() {
        let named = !matches!(word.as_str(), "*" | "." | "~") && **word != *object.key.namespace;
        if !named {
            continue;
        }
        if scene.has_namespace(word) == Some(false) {
            report.warn(
                ("unknown-namespace", object, &format!("spec.exportTo[{i}]")),
                format!("there is no namespace {word}"),
                "nobody there sees it",
            );
        }
    }
}
