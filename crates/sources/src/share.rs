//! Strings that many objects have are kept once.

use pilotfish_config::Text;
use std::collections::HashSet;

use pilotfish_config::{Labels, Object, Spec};

/// How many strings are remembered before those that nobody uses are forgotten.
const TIDY_AT: usize = 1024;

/// Strings that were seen.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    strings: HashSet<Text>,
    tidy_at: usize,
}

impl Shared {
    /// Replaces what objects have in common: namespaces, labels, names of annotations, owners, accounts and places. Of Pods, only
    /// what is read stays.
    pub(crate) fn share(&mut self, object: &mut Object) {
        self.one(&mut object.key.namespace);
        self.labels(&mut object.meta.labels);
        self.map(&mut object.meta.annotations, false);
        match &mut object.spec {
            Spec::Service(service) => self.labels(&mut service.selector),
            Spec::DestinationRule(rule) => {
                for subset in &mut rule.subsets {
                    self.labels(&mut subset.labels);
                }
            }
            Spec::ServiceEntry(entry) => {
                for endpoint in &mut entry.endpoints {
                    self.labels(&mut endpoint.labels);
                }
            }
            Spec::WorkloadEntry(entry) => self.labels(&mut entry.labels),
            Spec::Pod(pod) => {
                pod.trim();
                self.one(&mut pod.node_name);
                self.one(&mut pod.service_account_name);
                self.one(&mut pod.host_ip);
            }
            Spec::EndpointSlice(slice) => {
                for endpoint in &mut slice.endpoints {
                    let places = endpoint.node_name.iter_mut().chain(&mut endpoint.zone);
                    places.for_each(|place| self.one(place));
                    if let Some(target) = &mut endpoint.target_ref {
                        self.one(&mut target.kind);
                        self.one(&mut target.namespace);
                    }
                }
            }
            _ => {}
        }
        if let Some(owner) = &mut object.meta.owner {
            self.one(&mut owner.kind);
            self.one(&mut owner.api_version);
            self.one(&mut owner.name);
        }
        if self.strings.len() > self.tidy_at.max(TIDY_AT) {
            self.strings
                .retain(|text| Text::strong_count(text) != Some(1));
            self.tidy_at = self.strings.len() * 2;
        }
    }

    fn labels(&mut self, labels: &mut Labels) {
        self.map(labels, true);
    }

    fn map(&mut self, map: &mut Labels, values: bool) {
        let shared = std::mem::take(map).into_iter().map(|(mut key, mut value)| {
            self.one(&mut key);
            if values {
                self.one(&mut value);
            }
            (key, value)
        });
        *map = shared.collect();
    }

    fn one(&mut self, text: &mut Text) {
        match self.strings.get(text) {
            Some(known) => *text = known.clone(),
            None => {
                self.strings.insert(text.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pilotfish_config::networking::ServiceEntry;
    use pilotfish_config::{Kind, parse};
    use serde_json::json;

    use super::*;

    fn pod(name: &str, app: &str) -> Object {
        let value =
            json!({"metadata": {"name": name, "namespace": "shop", "labels": {"app": app}}});
        parse::object(value, Kind::Pod).objects.remove(0)
    }

    #[test]
    fn equal_strings_are_one() {
        let (mut shared, mut a, mut b) = (Shared::default(), pod("a", "cart"), pod("b", "cart"));
        shared.share(&mut a);
        shared.share(&mut b);
        assert!(Text::ptr_eq(&a.key.namespace, &b.key.namespace));
        let app = |pod: &Object| pod.meta.labels.get("app").cloned().expect("a label");
        assert!(Text::ptr_eq(&app(&a), &app(&b)));
    }

    #[test]
    fn labels_of_endpoints_too() {
        let value = json!({"metadata": {"name": "a"}, "spec": {
        "hosts": ["cart.test"], "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}], "resolution": "STATIC",
        "endpoints": [
            {"address": "10.0.0.1", "labels": {"app": "cart"}},
            {"address": "10.0.0.2", "labels": {"app": "cart"}},
        ]}});
        let mut object = parse::object(value, Kind::ServiceEntry).objects.remove(0);
        Shared::default().share(&mut object);
        let entry: &ServiceEntry = object.get().expect("a ServiceEntry");
        let app = |index: usize| entry.endpoints[index].labels.get("app").expect("a label");
        assert!(Text::ptr_eq(app(0), app(1)));
    }

    #[test]
    fn what_nobody_uses_is_forgotten() {
        let mut shared = Shared::default();
        for index in 0..10 * TIDY_AT {
            shared.share(&mut pod("a", &index.to_string()));
        }
        assert!(shared.strings.len() <= TIDY_AT + 3);
    }
}
