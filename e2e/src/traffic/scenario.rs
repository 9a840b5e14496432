//! The tables: what `scenarios/NAME/rows.yaml` says.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use super::certificates::Wish;
use crate::envoy::Protocol;

/// The file of the table; all other files of a scenario are its mesh.
pub(super) const ROWS: &str = "rows.yaml";

/// One mesh, started once, and the rows that are asked of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Scenario {
    /// What it is about, in a line.
    pub(super) about: String,
    /// How its proxies speak xDS.
    #[serde(default)]
    pub(super) xds: Xds,
    /// Pods that have an Envoy.
    pub(super) proxies: Vec<String>,
    /// The mesh configuration, if it is not the default.
    #[serde(default)]
    pub(super) mesh_config: Option<Value>,
    /// Variables of the control plane's environment.
    #[serde(default)]
    pub(super) environment: BTreeMap<String, String>,
    /// What answers outside of Kubernetes, or otherwise than a Pod says.
    #[serde(default)]
    pub(super) upstreams: BTreeMap<String, Server>,
    /// Certificates to make.
    #[serde(default)]
    pub(super) certificates: BTreeMap<String, Wish>,
    /// Kubernetes Secrets to add to the mesh, by `namespace/name`.
    #[serde(default)]
    pub(super) secrets: BTreeMap<String, Secret>,
    /// Where requests come from, unless a row says otherwise.
    pub(super) from: String,
    /// The table.
    pub(super) rows: Vec<Step>,
}

/// How proxies speak xDS.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Xds {
    /// Incremental.
    #[default]
    Delta,
    /// State of the world.
    Sotw,
}

impl Xds {
    /// As tables spell it.
    pub(super) fn named(text: &str) -> Result<Self> {
        serde_saphyr::from_str(text).with_context(|| format!("xDS is delta or sotw, not {text}"))
    }
}

impl From<Xds> for Protocol {
    fn from(xds: Xds) -> Self {
        match xds {
            Xds::Delta => Self::Delta,
            Xds::Sotw => Self::Sotw,
        }
    }
}

/// Something that answers requests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Server {
    /// Its address.
    #[serde(default)]
    pub(super) address: Option<Ipv4Addr>,
    /// Its ports.
    #[serde(default)]
    pub(super) ports: Vec<u16>,
    /// The name of its unix socket under `$RUN`, instead of an address.
    #[serde(default)]
    pub(super) socket: Option<String>,
    /// The pod of a proxy that it shares the network of.
    #[serde(default)]
    pub(super) beside: Option<String>,
    /// If it serves TLS: its certificate.
    #[serde(default)]
    pub(super) certificate: Option<String>,
    /// If it asks clients for a certificate: the authority it trusts.
    #[serde(default)]
    pub(super) asks_for: Option<String>,
}

/// The content of a Secret.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Secret {
    /// `tls.crt` and `tls.key`
    #[serde(default)]
    pub(super) certificate: Option<String>,
    /// `ca.crt`
    #[serde(default)]
    pub(super) authority: Option<String>,
    /// Whether keys are spelled `cert`, `key` and `cacert`.
    #[serde(default)]
    pub(super) generic: bool,
}

/// What is done, and what must be seen. A row is a step with a name; a story has further steps in `then`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Step {
    /// The name of the row.
    #[serde(default)]
    pub(super) row: Option<String>,
    /// How upstreams behave from now to the end of the row.
    #[serde(default)]
    pub(super) given: BTreeMap<String, Behaviour>,
    /// Files of the mesh that are written now and taken back at the end of the row; no text removes one.
    #[serde(default)]
    pub(super) write: BTreeMap<String, Option<String>>,
    /// Secrets of the mesh that are replaced now and taken back at the end of the row.
    #[serde(default)]
    pub(super) secrets: BTreeMap<String, Secret>,
    /// `GET http://catalog/books`; `{n}` here and in headers is the number of the request.
    pub(super) send: String,
    /// Where to connect, if that is not the address of the host: `ingress:8080`, `10.77.9.1:80`.
    #[serde(default)]
    pub(super) at: Option<String>,
    /// The pod it is sent from.
    #[serde(default)]
    pub(super) from: Option<String>,
    /// Headers of the request.
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    /// For `https`: whom the client trusts and who it says it is.
    #[serde(default)]
    pub(super) tls: Option<ClientTls>,
    /// How often it is sent.
    #[serde(default = "once")]
    pub(super) times: usize,
    /// How many are under way at once.
    #[serde(default = "once")]
    pub(super) parallel: usize,
    /// For how many seconds it is done again until what is seen is what is expected.
    #[serde(default)]
    pub(super) within: Option<f64>,
    /// What must be seen.
    #[serde(default)]
    pub(super) expect: Expect,
    /// What follows.
    #[serde(default)]
    pub(super) then: Vec<Step>,
}

fn once() -> usize {
    1
}

/// How an upstream behaves.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Behaviour {
    /// The status it answers.
    #[serde(default)]
    pub(super) status: Option<u16>,
    /// Only this many requests of a step meet that; the others are answered as usual.
    #[serde(default)]
    pub(super) first: Option<usize>,
    /// How many seconds it takes to answer.
    #[serde(default)]
    pub(super) delay: f64,
    /// Whether it closes the connection instead of answering.
    #[serde(default)]
    pub(super) close: bool,
    /// Headers of its answers.
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
}

/// The client's side of TLS.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ClientTls {
    /// The authority it trusts.
    pub(super) trusts: String,
    /// The certificate it shows.
    #[serde(default)]
    pub(super) shows: Option<String>,
    /// The server name it asks for, if that is not the host.
    #[serde(default)]
    pub(super) sni: Option<String>,
    /// Whether it knows nothing newer than TLS 1.2.
    #[serde(default)]
    pub(super) old: bool,
}

/// What must be seen. All of the answers of a step must agree, except where something is counted.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Expect {
    /// The status of every answer; 200 if nothing else is said.
    #[serde(default)]
    pub(super) status: Option<u16>,
    /// How many answers had each status, instead.
    #[serde(default)]
    pub(super) statuses: BTreeMap<u16, Count>,
    /// No answer, but an error with this in its text.
    #[serde(default)]
    pub(super) failure: Option<String>,
    /// The upstream of every answer.
    #[serde(default)]
    pub(super) from: Option<String>,
    /// How many answers came from each upstream.
    #[serde(default)]
    pub(super) answered: BTreeMap<String, Count>,
    /// How many upstreams the answers came from.
    #[serde(default)]
    pub(super) different: Option<Count>,
    /// How many requests reached each upstream: retries and mirrors count.
    #[serde(default)]
    pub(super) reached: BTreeMap<String, Count>,
    /// What the upstream that answered saw.
    #[serde(default)]
    pub(super) upstream: Saw,
    /// What the last request that reached an upstream looked like: how mirrors are looked at.
    #[serde(default)]
    pub(super) saw: BTreeMap<String, Saw>,
    /// Headers of the answer.
    #[serde(default)]
    pub(super) headers: BTreeMap<String, Wanted>,
    /// The body of the answer.
    #[serde(default)]
    pub(super) body: Option<Wanted>,
    /// How many seconds an answer took.
    #[serde(default)]
    pub(super) seconds: Option<(f64, f64)>,
    /// The certificate that the client was shown.
    #[serde(default)]
    pub(super) certificate: Option<Wanted>,
    /// Sums of an Envoy's counters, by pod and regular expression.
    #[serde(default)]
    pub(super) stats: BTreeMap<String, BTreeMap<String, Count>>,
}

/// A request as an upstream saw it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Saw {
    /// The method.
    #[serde(default)]
    pub(super) method: Option<Wanted>,
    /// The path with its query.
    #[serde(default)]
    pub(super) path: Option<Wanted>,
    /// `Host` or `:authority`.
    #[serde(default)]
    pub(super) host: Option<Wanted>,
    /// `HTTP/1.1` or `HTTP/2.0`.
    #[serde(default)]
    pub(super) protocol: Option<Wanted>,
    /// The port that it came to.
    #[serde(default)]
    pub(super) port: Option<Wanted>,
    /// TLS: the server name; absent without TLS.
    #[serde(default)]
    pub(super) sni: Option<Wanted>,
    /// TLS: the certificate the proxy showed.
    #[serde(default)]
    pub(super) certificate: Option<Wanted>,
    /// `plain` or `tls`.
    #[serde(default)]
    pub(super) transport: Option<Wanted>,
    /// The preamble of the PROXY protocol: `v1 10.77.1.1`.
    #[serde(default)]
    pub(super) proxy_protocol: Option<Wanted>,
    /// In the tunnel of a forward proxy: where the client wanted to go.
    #[serde(default)]
    pub(super) tunnel: Option<Wanted>,
    /// Headers.
    #[serde(default)]
    pub(super) headers: BTreeMap<String, Wanted>,
}

/// A number, or a least and a most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    least: u64,
    most: u64,
}

impl Count {
    pub(super) fn holds(self, seen: u64) -> bool {
        (self.least..=self.most).contains(&seen)
    }

    /// Whether more may come after this was seen, so that a moment must pass before it is believed.
    pub(super) fn bounds_above(self) -> bool {
        self.most != u64::MAX
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.least, self.most) {
            (least, most) if least == most => write!(f, "{least}"),
            (least, u64::MAX) => write!(f, "{least} or more"),
            (least, most) => write!(f, "{least} to {most}"),
        }
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let bounds = match &value {
            Value::Array(pair) => match pair.as_slice() {
                [least] => least.as_u64().map(|least| (least, u64::MAX)),
                [least, most] => least.as_u64().zip(most.as_u64()),
                _ => None,
            },
            one => one.as_u64().map(|one| (one, one)),
        };
        let (least, most) =
            bounds.ok_or_else(|| de::Error::custom("a count is N, [least] or [least, most]"))?;
        Ok(Self { least, most })
    }
}

/// A text, or a part of it (`~part`), or nothing at all (`absent`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Is(String),
    Has(String),
    Absent,
}

impl Wanted {
    pub(super) fn holds(&self, seen: Option<&str>) -> bool {
        match (self, seen) {
            (Self::Absent, seen) => seen.is_none(),
            (_, None) => false,
            (Self::Is(wanted), Some(seen)) => wanted == seen,
            (Self::Has(part), Some(seen)) => seen.contains(part.as_str()),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(text) => write!(f, "{text:?}"),
            Self::Has(part) => write!(f, "something with {part:?}"),
            Self::Absent => write!(f, "nothing"),
        }
    }
}

impl<'de> Deserialize<'de> for Wanted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            other => return Err(de::Error::custom(format!("{other} is not a text"))),
        };
        Ok(match text.strip_prefix('~') {
            Some(part) => Self::Has(part.to_owned()),
            None if text == "absent" => Self::Absent,
            None => Self::Is(text),
        })
    }
}

impl Scenario {
    /// Reads the table of a scenario. Every row has a name, and no two the same.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let file = folder.join(ROWS);
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let scenario: Self =
            serde_saphyr::from_str(&text).with_context(|| format!("parse {}", file.display()))?;
        let mut names: Vec<&str> = scenario.rows.iter().map(Step::name).collect();
        names.sort_unstable();
        let repeated = names.windows(2).find(|pair| pair[0] == pair[1]);
        ensure!(repeated.is_none(), "two rows are called {repeated:?}");
        ensure!(!names.contains(&""), "a row without a name");
        for row in scenario.rows.iter().filter(|row| row.writes()) {
            ensure!(
                row.within.is_some(),
                "{}: say within which time",
                row.name()
            );
        }
        Ok(scenario)
    }
}

impl Step {
    /// Whether a row changes the mesh.
    pub(super) fn writes(&self) -> bool {
        !self.write.is_empty() || !self.secrets.is_empty() || self.then.iter().any(Self::writes)
    }

    /// The name of a row.
    pub(super) fn name(&self) -> &str {
        self.row.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The suite promises this many rows.
    const ROWS_PROMISED: usize = 80;

    #[test]
    fn every_table_can_be_read() {
        let mut rows = 0;
        for name in crate::traffic::scenarios().unwrap() {
            let scenario = Scenario::read(&crate::traffic::folder().join(&name))
                .unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(!scenario.rows.is_empty(), "{name} has no rows");
            rows += scenario.rows.len();
        }
        assert!(rows >= ROWS_PROMISED, "{rows} rows");
    }

    #[test]
    fn counts_and_texts_say_what_they_want() {
        let count = |text| serde_saphyr::from_str::<Count>(text).unwrap();
        assert!(count("3").holds(3) && !count("3").holds(4));
        assert!(count("[2, 4]").holds(4) && !count("[2, 4]").holds(5));
        assert!(count("[2]").holds(900) && !count("[2]").holds(1));
        let text = |text| serde_saphyr::from_str::<Wanted>(text).unwrap();
        assert!(text("9080").holds(Some("9080")) && !text("9080").holds(None));
        assert!(text("~b").holds(Some("abc")) && !text("~b").holds(Some("ac")));
        assert!(text("absent").holds(None) && !text("absent").holds(Some("absent")));
    }
}
