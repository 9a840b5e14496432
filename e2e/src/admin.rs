//! Envoy's admin interface.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::client::Client;
use crate::net::Net;

/// Asks one Envoy.
#[derive(Clone, Debug)]
pub struct Admin {
    net: Net,
    address: SocketAddr,
}

/// One cluster as Envoy sees it: its name, and the address and port of each host with the host's health.
pub type Hosts = BTreeMap<String, Vec<String>>;

impl Admin {
    /// The admin interface at `address`, reached from `net`.
    pub fn new(net: &Net, address: SocketAddr) -> Self {
        Self {
            net: net.clone(),
            address,
        }
    }

    /// `GET path`, as text.
    pub fn get(&self, path: &str) -> Result<String> {
        let response = Client::new(&self.net, self.address, "admin")
            .get(path)
            .with_context(|| format!("admin {path}"))?;
        if response.status != 200 {
            bail!(
                "admin {path}: {} {}",
                response.status,
                response.text().trim()
            );
        }
        Ok(response.text())
    }

    /// Counters and gauges whose names match a regular expression.
    pub fn stats(&self, filter: &str) -> Result<BTreeMap<String, u64>> {
        let text = self.get(&format!("/stats?filter={}", escape(filter)))?;
        Ok(text.lines().filter_map(stat).collect())
    }

    /// The sum of all counters and gauges whose names match.
    pub fn sum(&self, filter: &str) -> Result<u64> {
        Ok(self.stats(filter)?.values().sum())
    }

    /// Updates that Envoy refused, of any type. Zero is what we want.
    pub fn rejected(&self) -> Result<u64> {
        self.sum("update_rejected$")
    }

    /// An error until Envoy serves and has taken clusters and listeners from the control plane.
    pub fn configured(&self) -> Result<()> {
        let taken = self.stats("(cds|lds)\\.(update_success|update_rejected)$")?;
        let has = |name: &str| taken.get(name).copied().unwrap_or(0) > 0;
        if !has("cluster_manager.cds.update_success") || !has("listener_manager.lds.update_success")
        {
            bail!("no clusters or no listeners yet: {taken:?}");
        }
        self.get("/ready").map(drop)
    }

    /// The hosts of each cluster.
    pub fn hosts(&self) -> Result<Hosts> {
        let dump: Value = serde_json::from_str(&self.get("/clusters?format=json")?)
            .context("JSON of /clusters")?;
        let mut clusters = Hosts::new();
        for cluster in dump["cluster_statuses"].as_array().into_iter().flatten() {
            let hosts = cluster["host_statuses"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|host| {
                    let address = &host["address"]["socket_address"];
                    format!(
                        "{}:{}",
                        address["address"].as_str().unwrap_or("?"),
                        address["port_value"]
                    )
                });
            clusters.insert(
                cluster["name"].as_str().unwrap_or_default().to_owned(),
                hosts.collect(),
            );
        }
        Ok(clusters)
    }
}

fn stat(line: &str) -> Option<(String, u64)> {
    let (name, value) = line.rsplit_once(": ")?;
    Some((name.to_owned(), value.parse().ok()?))
}

/// Percent-encodes everything but letters and digits.
fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b if b.is_ascii_alphanumeric() => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_may_have_colons_in_its_name_and_histograms_are_left_out() {
        assert_eq!(
            stat("cluster.a: b.rq: 3"),
            Some(("cluster.a: b.rq".to_owned(), 3))
        );
        assert_eq!(stat("cluster.a.time: P0(nan,0)"), None);
    }

    #[test]
    fn a_filter_survives_the_query() {
        assert_eq!(escape("a.b$"), "a%2Eb%24");
    }
}
