//! Addresses that hosts of ServiceEntries were given, in `status.addresses` as istiod writes them: what is there stays, so
//! that an address does not move when other hosts come and go. Only where two have the same, the younger gets another.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use pilotfish_config::networking::ServiceEntry;
use pilotfish_config::{Kind, Object, ObjectKey};
use pilotfish_mesh::Text;
use serde_json::{Value, json};

use crate::{Form, Part, View, Wanted, says};

const FIELD: &str = "addresses";

/// Who has an address. Order is precedence: authors come before us, then the older.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    ours: bool,
    created: i64,
    object: ObjectKey,
    host: Text,
}

/// The first of those who have each address.
fn owners(view: &View<'_>) -> BTreeMap<IpAddr, Claim> {
    let mut owners = BTreeMap::new();
    let mut claim = |address: &str, claim: Claim| {
        if let Ok(address) = address.parse::<IpAddr>() {
            match owners.entry(address) {
                std::collections::btree_map::Entry::Vacant(place) => drop(place.insert(claim)),
                std::collections::btree_map::Entry::Occupied(mut owner) => {
                    if claim < *owner.get() {
                        owner.insert(claim);
                    }
                }
            }
        }
    };
    for (entry, spec) in view.snapshot.typed::<ServiceEntry>() {
        let by = |ours, host: Text| Claim {
            ours,
            created: entry.meta.created.unwrap_or(i64::MAX),
            object: entry.key.clone(),
            host,
        };
        for address in &spec.addresses {
            claim(address, by(false, Text::default()));
        }
        for (host, address) in view.world.allocated(entry) {
            claim(&address, by(true, host));
        }
    }
    owners
}

/// The addresses of all hosts of an entry. A host that has one that is another's gets others instead.
fn addresses(
    view: &View<'_>,
    entry: &Object,
    owners: &BTreeMap<IpAddr, Claim>,
    given: &mut BTreeSet<u16>,
) -> Vec<(Text, Text)> {
    let mut all = view.world.allocated(entry);
    let is_foreign = |(host, address): &&(Text, Text)| {
        let owner = address.parse().ok().and_then(|ip: IpAddr| owners.get(&ip));
        owner.is_some_and(|owner| owner.object != entry.key || owner.host != *host)
    };
    let foreign: BTreeSet<Text> = all
        .iter()
        .filter(is_foreign)
        .map(|(h, _)| h.clone())
        .collect();
    for host in foreign {
        let place = all.iter().position(|(h, _)| *h == host).unwrap_or(0);
        all.retain(|(h, _)| *h != host);
        let new = view.world.reallocated(entry, &host, given).into_iter();
        let new: Vec<_> = new.map(|address| (host.clone(), address)).collect();
        all.splice(place..place, new);
    }
    all
}

pub(crate) fn wanted(view: &View<'_>) -> Vec<Wanted> {
    let (owners, mut given) = (owners(view), BTreeSet::new());
    let entries = view.snapshot.list(Kind::ServiceEntry);
    entries
        // One that is declared by a file is not what the cluster has under that name.
        .filter(|entry| entry.origin.is_none())
        .filter_map(|entry| {
            let standing = view.standings.get(&entry.key)?;
            if standing.refused {
                return None;
            }
            let addresses = addresses(view, entry, &owners, &mut given);
            let wanted: Value = addresses
                .iter()
                .map(|(host, value)| json!({"host": &**host, "value": &**value}))
                .collect();
            let there = standing.status();
            if says(there.get(FIELD), &wanted) {
                return None;
            }
            Some(Wanted {
                part: Part::Addresses,
                object: entry.key.clone(),
                form: Form::Status(BTreeMap::from([(FIELD, wanted)])),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pilotfish_config::{Change, Standing, Standings, Store, parse};
    use pilotfish_mesh::{Settings, World};

    use super::*;

    fn entry(name: &str, more: &str, status: &str) -> String {
        format!(
            "{{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {{name: {name}, namespace: shop}}, spec: \
             {{hosts: [b.{name}, a.{name}, b.{name}], ports: [{{number: 80, name: http, protocol: HTTP}}], {more}}}, status: {status}}}"
        )
    }

    /// What is wanted of entries, given as (YAML, standing).
    fn wants(entries: &[(String, Standing)]) -> Vec<Wanted> {
        let (mut store, mut standings) = (Store::new(), Standings::new());
        let source = store.register("test");
        let mut changes = Vec::new();
        for (yaml, standing) in entries {
            let mut object = parse::documents(yaml, "x").objects.remove(0);
            object.origin = None;
            standings.insert(object.key.clone(), Arc::new(standing.clone()));
            changes.push(Change::upsert(object));
        }
        let applied = store.apply(source, changes);
        let world = World::empty(Settings::default())
            .update(&applied.snapshot, &applied.changed)
            .world;
        wanted(&View {
            snapshot: &applied.snapshot,
            world: &world,
            standings: &standings,
            findings: &[],
            judged: &standings,
            instance: "",
            now: "",
        })
    }

    fn standing(status: Option<&str>) -> Standing {
        Standing {
            uid: "u".into(),
            version: 1,
            generation: 1,
            api_version: "networking.istio.io/v1".into(),
            status: status.map(Into::into),
            refused: false,
        }
    }

    fn said(wanted: &Wanted) -> Vec<(String, String)> {
        let Form::Status(fields) = &wanted.form else {
            panic!("{wanted:?}");
        };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let all = fields[FIELD].as_array().unwrap().iter();
        all.map(|a| (text(&a["host"]), text(&a["value"]))).collect()
    }

    #[test]
    fn every_host_gets_both_addresses_once() {
        let wanted = wants(&[(entry("x", "resolution: DNS", "{}"), standing(None))]);
        let addresses = said(&wanted[0]);
        let hosts: Vec<&str> = addresses.iter().map(|(host, _)| host.as_str()).collect();
        assert_eq!(hosts, ["b.x", "b.x", "a.x", "a.x"]);
        assert!(addresses[0].1.starts_with("240.240.") && addresses[1].1.starts_with("2001:2::"));
    }

    #[test]
    fn what_is_there_stays_and_what_is_missing_is_added() {
        let status = r#"{"addresses":[{"host":"b.x","value":"240.240.7.7"},{"host":"gone","value":"240.240.8.8"}]}"#;
        let wanted = wants(&[(
            entry("x", "resolution: DNS", status),
            standing(Some(status)),
        )]);
        let addresses = said(&wanted[0]);
        assert_eq!(addresses[0], ("b.x".to_owned(), "240.240.7.7".to_owned()));
        assert_eq!(addresses.len(), 3, "{addresses:?}");
        assert!(addresses[1..].iter().all(|(host, _)| host == "a.x"));
    }

    #[test]
    fn nothing_is_wanted_that_is_there() {
        let first = wants(&[(entry("x", "resolution: DNS", "{}"), standing(None))]);
        let Form::Status(fields) = &first[0].form else {
            panic!()
        };
        let status = json!({ FIELD: fields[FIELD] }).to_string();
        let again = wants(&[(
            entry("x", "resolution: DNS", &status),
            standing(Some(&status)),
        )]);
        assert_eq!(again, []);
    }

    #[test]
    fn addresses_that_nobody_wants_any_more_are_taken_away() {
        let status = r#"{"addresses":[{"host":"b.x","value":"240.240.7.7"}]}"#;
        for more in ["resolution: NONE", "resolution: DNS, addresses: [10.0.0.1]"] {
            let wanted = wants(&[(entry("x", more, status), standing(Some(status)))]);
            assert_eq!(said(&wanted[0]), []);
            assert_eq!(wants(&[(entry("x", more, "{}"), standing(None))]), []);
        }
    }

    #[test]
    fn of_two_with_the_same_address_one_gets_another() {
        let status = |host: &str| {
            format!(
                r#"{{"addresses":[{{"host":"b.{host}","value":"240.240.7.7"}},{{"host":"a.{host}","value":"240.240.7.{}"}}]}}"#,
                host.len()
            )
        };
        let (x, yy) = (status("x"), status("yy"));
        let both = [
            (entry("x", "resolution: DNS", &x), standing(Some(&x))),
            (entry("yy", "resolution: DNS", &yy), standing(Some(&yy))),
        ];
        let wanted = wants(&both);
        assert_eq!(wanted.len(), 1, "{wanted:?}");
        assert_eq!(&*wanted[0].object.name, "yy");
        let new = said(&wanted[0]);
        assert_eq!((new[0].0.as_str(), new[1].0.as_str()), ("b.yy", "b.yy"));
        assert_ne!(new[0].1, "240.240.7.7");
        assert_eq!(new[2], ("a.yy".to_owned(), "240.240.7.2".to_owned()));
        // What an author wrote goes before all.
        let user = entry("zz", "resolution: DNS, addresses: [240.240.7.7]", "{}");
        let mut all = both.to_vec();
        all.push((user, standing(None)));
        let names: Vec<String> = wants(&all)
            .iter()
            .map(|w| w.object.name.to_string())
            .collect();
        assert_eq!(names, ["x", "yy"]);
    }

    #[test]
    fn what_is_not_in_effect_is_left_alone() {
        let refused = Standing {
            refused: true,
            ..standing(None)
        };
        assert_eq!(wants(&[(entry("x", "resolution: DNS", "{}"), refused)]), []);
    }
}
