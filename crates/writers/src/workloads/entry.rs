//! WorkloadEntries as JSON: what one is called and says that is made for a proxy, and what annotations and conditions mean.
//! Names and forms are istiod's, so that both can take over from each other.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use pilotfish_config::Object;
use serde_json::{Map, Value, json};

use crate::shorten;

const GROUP: &str = "istio.io/autoRegistrationGroup";
const CONTROLLER: &str = "istio.io/workloadController";
const CONNECTED: &str = "istio.io/connectedAt";
const DISCONNECTED: &str = "istio.io/disconnectedAt";
const HEALTH_CHECKED: &str = "proxy.istio.io/health-checks-enabled";
const TUNNEL: &str = "networking.istio.io/tunnel";
const LOCALITY: &str = "istio-locality";
const HEALTHY: &str = "Healthy";
/// Longest name that Kubernetes takes.
const LONGEST_NAME: usize = 253;
/// Longest message of a health check that is written.
const LONGEST_MESSAGE: usize = 1024;

/// The entry that a proxy wants to stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// One that is made for it, from this WorkloadGroup.
    Group(String),
    /// One that somebody else made, whose health it reports.
    Entry(String),
}

/// Who a proxy is known to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// Nobody knows.
    Unproven,
    /// A service account of a namespace.
    Proven {
        /// The namespace.
        namespace: String,
        /// The service account.
        account: String,
    },
    /// It does not matter.
    Any,
}

impl Identity {
    /// Whether it may stand for a workload of this namespace that runs as this account; any account if that is empty.
    pub fn may_be(&self, namespace: &str, account: &str) -> Result<(), String> {
        match self {
            Self::Unproven => Err(
                "the registration of a workload requires a verified identity: a client certificate of its service account"
                    .to_owned(),
            ),
            Self::Proven { namespace: proven, .. } if proven != namespace => Err(format!(
                "the workload is of namespace {namespace}, the verified identity of namespace {proven}"
            )),
            Self::Proven { account: proven, .. } if !account.is_empty() && proven != account => Err(format!(
                "the workload runs as service account {account}, the verified identity is {proven}"
            )),
            Self::Any | Self::Proven { .. } => Ok(()),
        }
    }
}

/// What a proxy says of the workload that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applicant {
    /// Its namespace.
    pub namespace: String,
    /// What it wants.
    pub claim: Claim,
    /// Its first address.
    pub address: String,
    /// Its network; empty if it says nothing.
    pub network: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its place as `region/zone/subzone`; empty if it says nothing.
    pub locality: String,
    /// Whether somebody checks its health.
    pub health_checked: bool,
    /// Whether it takes connections through HBONE.
    pub tunnel: bool,
    /// Who it is.
    pub identity: Identity,
}

impl Applicant {
    /// The name of its entry; or why it can have none.
    pub fn entry_name(&self) -> Result<String, String> {
        let group = match &self.claim {
            Claim::Group(group) => group,
            Claim::Entry(name) => return Ok(name.clone()),
        };
        let address = self.address.replace(':', "-");
        let mut name = format!("{group}-{}", address.trim_end_matches('-'));
        if !self.network.is_empty() {
            name = format!("{name}-{}", self.network);
        }
        let mut name = name.as_str();
        if let Some(excess) = name
            .len()
            .checked_sub(LONGEST_NAME)
            .filter(|excess| *excess > 0)
        {
            // The beginning is what many have in common.
            let start = (excess..=name.len()).find(|at| name.is_char_boundary(*at));
            name = name[start.unwrap_or(0)..].trim_start_matches(['-', '.']);
        }
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_label = |label: &str| {
            label.starts_with(is_plain)
                && label.ends_with(is_plain)
                && label.chars().all(|c| is_plain(c) || c == '-')
        };
        if name.split('.').all(is_label) {
            Ok(name.to_owned())
        } else {
            Err(format!(
                "{name:?}, made of group, address and network, cannot be the name of a WorkloadEntry"
            ))
        }
    }

    /// Labels that no Kubernetes object can have.
    pub fn odd_labels(&self) -> Vec<&str> {
        let odd = self.labels.iter().filter(|(key, value)| {
            key.as_str() != LOCALITY && !(is_label_name(key) && is_label_value(value))
        });
        odd.map(|(key, _)| key.as_str()).collect()
    }

    /// The entry that is made from a group.
    pub(super) fn entry(
        &self,
        group: &Value,
        name: &str,
        instance: &str,
        since: Timestamp,
    ) -> Value {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of_group = |field: &str| texts(&group["spec"]["metadata"][field]);
        let mut spec = group["spec"]["template"]
            .as_object()
            .cloned()
            .unwrap_or_default();
        let mut labels = texts(spec.get("labels").unwrap_or(&Value::Null));
        labels.extend(of_group("labels"));
        let odd = self.odd_labels();
        let own = self
            .labels
            .iter()
            .filter(|(key, _)| !odd.contains(&key.as_str()));
        labels.extend(own.map(|(key, value)| (key.clone(), value.clone())));
        labels.remove(LOCALITY);
        if self.tunnel {
            labels
                .entry(TUNNEL.to_owned())
                .or_insert_with(|| "http".to_owned());
        }
        let fields = [
            ("address", &self.address),
            ("network", &self.network),
            ("locality", &self.locality),
        ];
        for (field, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
            spec.insert(field.to_owned(), json!(value));
        }
        if !labels.is_empty() {
            spec.insert("labels".to_owned(), json!(labels));
        }
        let mut annotations = of_group("annotations");
        annotations.insert(GROUP.to_owned(), text(&group["metadata"]["name"]));
        annotations.insert(CONTROLLER.to_owned(), instance.to_owned());
        annotations.insert(CONNECTED.to_owned(), since.to_string());
        if self.health_checked {
            annotations.insert(HEALTH_CHECKED.to_owned(), "true".to_owned());
        }
        json!({
            "apiVersion": group["apiVersion"], "kind": "WorkloadEntry",
            "metadata": {
                "name": name, "namespace": self.namespace, "labels": labels, "annotations": annotations,
                "ownerReferences": [{
                    "apiVersion": group["apiVersion"], "kind": "WorkloadGroup", "controller": true,
                    "name": group["metadata"]["name"], "uid": group["metadata"]["uid"],
                }],
            },
            "spec": spec,
        })
    }
}

/// A map of texts; what is none is left out.
fn texts(value: &Value) -> BTreeMap<String, String> {
    let fields = value.as_object().into_iter().flatten();
    fields
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_label_word(value)
}

fn is_label_word(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric();
    word.len() <= 63
        && word.starts_with(plain)
        && word.ends_with(plain)
        && word.chars().all(|c| plain(c) || "-_.".contains(c))
}

fn is_label_name(name: &str) -> bool {
    match name.split_once('/') {
        None => is_label_word(name),
        Some((prefix, word)) => {
            let is_part = |part: &str| {
                let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
                part.starts_with(plain)
                    && part.ends_with(plain)
                    && part.chars().all(|c| plain(c) || c == '-')
            };
            prefix.len() <= LONGEST_NAME && prefix.split('.').all(is_part) && is_label_word(word)
        }
    }
}

/// What the annotations of an entry say of its workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stands {
    /// It was made for a proxy.
    pub(super) made: bool,
    /// Its health is checked, or has been.
    pub(super) is_checked: bool,
    /// Which replica its proxy is, or was last, connected to.
    pub(super) controller: String,
    /// It says that its proxy is connected.
    pub(super) is_connected: bool,
    /// Since when, if that can be read.
    pub(super) connected: Option<Timestamp>,
    /// Since when it is not; a time that cannot be read is long ago.
    pub(super) disconnected: Option<Timestamp>,
}

impl Stands {
    fn new<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Self {
        let said = |name: &str| annotation(name).filter(|value| !value.is_empty());
        Self {
            made: said(GROUP).is_some(),
            is_checked: annotation(HEALTH_CHECKED).is_some(),
            controller: said(CONTROLLER).unwrap_or_default().to_owned(),
            is_connected: said(CONNECTED).is_some(),
            connected: said(CONNECTED).and_then(|time| time.parse().ok()),
            disconnected: said(DISCONNECTED).map(|time| time.parse().unwrap_or(Timestamp::MIN)),
        }
    }

    pub(super) fn of_json(entry: &Value) -> Self {
        let annotations = &entry["metadata"]["annotations"];
        Self::new(|name| annotations.get(name)?.as_str())
    }

    pub(super) fn of_object(entry: &Object) -> Self {
        Self::new(|name| entry.meta.annotations.get(name).map(|value| &**value))
    }

    /// Whether nobody will come back for it: it has been disconnected for as long as the grace period, or connected for
    /// longer than any connection lasts.
    pub(super) fn is_abandoned(
        &self,
        now: Timestamp,
        grace: Duration,
        longest: Option<Duration>,
    ) -> bool {
        if self.is_connected {
            return longest
                .zip(self.connected)
                .is_some_and(|(longest, since)| since_then(now, since) > longest);
        }
        self.disconnected
            .is_some_and(|since| since_then(now, since) >= grace)
    }
}

/// How long ago something was; nothing if it is yet to come.
pub(super) fn since_then(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

/// A change that holds only for the version of the entry that it was thought out for.
fn change(entry: &Value, mut fields: Value) -> Value {
    fields["metadata"]["resourceVersion"] = entry["metadata"]["resourceVersion"].clone();
    fields
}

/// Its proxy is connected to this replica.
pub(super) fn claim(entry: &Value, instance: &str, since: Timestamp) -> Value {
    let annotations =
        json!({CONTROLLER: instance, CONNECTED: since.to_string(), DISCONNECTED: null});
    change(entry, json!({"metadata": {"annotations": annotations}}))
}

/// Its proxy has left.
pub(super) fn release(entry: &Value, at: Timestamp) -> Value {
    let annotations = json!({CONNECTED: null, DISCONNECTED: at.to_string()});
    change(entry, json!({"metadata": {"annotations": annotations}}))
}

/// Removes exactly this entry.
pub(super) fn removal(entry: &Value) -> Value {
    let meta = &entry["metadata"];
    json!({"preconditions": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}})
}

/// What a health check said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Whether all is well.
    pub healthy: bool,
    /// What is not.
    pub message: String,
    /// When.
    pub at: Timestamp,
}

fn conditions(entry: &Value) -> &[Value] {
    let conditions = entry["status"]["conditions"].as_array();
    conditions.map_or(&[], Vec::as_slice)
}

fn healthy(entry: &Value) -> Option<&Value> {
    conditions(entry)
        .iter()
        .find(|condition| condition["type"] == HEALTHY)
}

/// Whether anything is known of its health.
pub(super) fn has_health(entry: &Value) -> bool {
    healthy(entry).is_some()
}

/// The status that says what a health check said; `None` if it does already, or something newer.
pub(super) fn reported(entry: &Value, report: &Report) -> Option<Value> {
    let status = if report.healthy { "True" } else { "False" };
    let message = shorten(&report.message, LONGEST_MESSAGE);
    if let Some(there) = healthy(entry) {
        let probed = there["lastProbeTime"]
            .as_str()
            .and_then(|time| time.parse::<Timestamp>().ok());
        let same =
            there["status"] == status && there["message"].as_str().unwrap_or_default() == message;
        if same || probed.is_some_and(|probed| probed > report.at) {
            return None;
        }
    }
    let time = report.at.to_string();
    let mut condition = json!({"type": HEALTHY, "status": status, "lastProbeTime": time, "lastTransitionTime": time});
    if !message.is_empty() {
        condition["message"] = json!(message);
    }
    let mut all = conditions(entry).to_vec();
    match all.iter_mut().find(|other| other["type"] == HEALTHY) {
        Some(there) => *there = condition,
        None => all.push(condition),
    }
    Some(change(entry, json!({"status": {"conditions": all}})))
}

/// The status without what was known of its health.
pub(super) fn unreported(entry: &Value) -> Value {
    let others = conditions(entry)
        .iter()
        .filter(|condition| condition["type"] != HEALTHY);
    let others: Vec<&Value> = others.collect();
    change(entry, json!({"status": {"conditions": others}}))
}

/// Lays a change over a value: what is null is removed (RFC 7386).
pub(super) fn merge(value: &mut Value, change: &Value) {
    let Value::Object(change) = change else {
        *value = change.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    if let Value::Object(fields) = value {
        for (key, change) in change {
            if change.is_null() {
                fields.remove(key);
            } else {
                merge(fields.entry(key.clone()).or_insert(Value::Null), change);
            }
        }
    }
}
