//! Names by which resources refer to each other. Others parse them, so they are spelled as Istio spells them.

use pilotfish_ir::ClusterName;

/// Ends the part of a statistics name that Istio's proxy takes for the cluster or listener.
pub(crate) const STAT_DELIMITER: char = ';';

/// Name of a cluster resource, and of its endpoints.
pub fn cluster_name(name: &ClusterName) -> String {
    match name {
        ClusterName::Passthrough => "PassthroughCluster".to_owned(),
        ClusterName::BlackHole => "BlackHoleCluster".to_owned(),
        ClusterName::InboundPassthrough => "InboundPassthroughCluster".to_owned(),
        ClusterName::InboundPassthroughV6 => "InboundPassthroughClusterIpv6".to_owned(),
        ClusterName::Inbound { port } => format!("inbound|{port}||"),
        ClusterName::Outbound { port, subset, host } => format!("outbound|{port}|{subset}|{host}"),
        ClusterName::BySni { port, subset, host } => {
            format!("outbound_.{port}_.{subset}_.{host}")
        }
        ClusterName::AnyHost => "AllowAnyDynamicDNSCluster".to_owned(),
    }
}

/// Name a cluster has in statistics. The inbound pass-through clusters are made from the outbound one and keep its name there.
pub(crate) fn stat_name(name: &ClusterName, spelled: &str) -> String {
    let base = match name {
        ClusterName::InboundPassthrough | ClusterName::InboundPassthroughV6 => "PassthroughCluster",
        _ => spelled,
    };
    delimited(base)
}

/// A statistics prefix with its end marked.
pub(crate) fn delimited(prefix: &str) -> String {
    let mut name = String::with_capacity(prefix.len() + 1);
    name.push_str(prefix);
    name.push(STAT_DELIMITER);
    name
}

/// Name of the cache of names resolved on demand; the cluster and the filters must agree on it.
pub(crate) fn dns_cache(host: &str) -> String {
    format!("{host}_dfp_dns_cache")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters() {
        let outbound = |port, subset: &str, host: &str| {
            cluster_name(&ClusterName::Outbound {
                port,
                subset: subset.into(),
                host: host.into(),
            })
        };
        assert_eq!(
            outbound(80, "v1", "web.shop.svc.cluster.local"),
            "outbound|80|v1|web.shop.svc.cluster.local"
        );
        assert_eq!(
            outbound(443, "", "*.wild.example"),
            "outbound|443||*.wild.example"
        );
        assert_eq!(
            cluster_name(&ClusterName::Inbound { port: 8080 }),
            "inbound|8080||"
        );
        assert_eq!(
            cluster_name(&ClusterName::Passthrough),
            "PassthroughCluster"
        );
        assert_eq!(cluster_name(&ClusterName::BlackHole), "BlackHoleCluster");
        assert_eq!(
            cluster_name(&ClusterName::InboundPassthrough),
            "InboundPassthroughCluster"
        );
    }

    #[test]
    fn statistics() {
        let stat = |name: &ClusterName| stat_name(name, &cluster_name(name));
        assert_eq!(
            stat(&ClusterName::InboundPassthrough),
            "PassthroughCluster;"
        );
        assert_eq!(stat(&ClusterName::Inbound { port: 80 }), "inbound|80||;");
    }
}
