//! `Pod`.

use super::{Protocol, api, api_enum};
use crate::Text;

api! {
    pub struct Pod {
        pub node_name: Text,
        pub service_account_name: Text,
        pub hostname: Text,
        pub subdomain: Text,
        pub host_network: bool,
        pub containers: Vec<Container>,
        pub init_containers: Vec<Container>,
        /// From `status`, like the fields below it.
        pub phase: PodPhase,
        #[serde(rename = "podIP")]
        pub pod_ip: Text,
        #[serde(rename = "podIPs")]
        pub pod_ips: Vec<PodIp>,
        #[serde(rename = "hostIP")]
        pub host_ip: Text,
        pub conditions: Vec<PodCondition>,
        /// Whether `metadata.deletionTimestamp` is set: the pod is on its way out.
        pub deleting: bool,
    }
}

impl Pod {
    /// Every address of the pod, the primary first.
    pub fn ips(&self) -> impl Iterator<Item = &Text> {
        let primary = Some(&self.pod_ip).filter(|ip| !ip.is_empty());
        let others = self
            .pod_ips
            .iter()
            .map(|ip| &ip.ip)
            .filter(move |ip| !ip.is_empty() && Some(*ip) != primary);
        primary.into_iter().chain(others)
    }

    /// Leaves out what nothing follows from: containers without a port that has a name, conditions other than `Ready`, and an
    /// address that stands there twice.
    pub fn trim(&mut self) {
        for containers in [&mut self.containers, &mut self.init_containers] {
            containers.retain(|container| container.ports.iter().any(|port| !port.name.is_empty()));
            containers.shrink_to_fit();
        }
        self.conditions
            .retain(|condition| condition.r#type == "Ready");
        self.conditions.shrink_to_fit();
        if matches!(&self.pod_ips[..], [only] if only.ip == self.pod_ip) {
            self.pod_ips = Vec::new();
        }
    }

    /// Whether the `Ready` condition is true.
    pub fn is_ready(&self) -> bool {
        self.conditions
            .iter()
            .any(|condition| condition.r#type == "Ready" && condition.status == "True")
    }
}

api! {
    pub struct Container {
        pub name: String,
        pub ports: Vec<ContainerPort>,
        /// `Always` on an init container makes it a native sidecar.
        pub restart_policy: String,
    }
}

api! {
    pub struct ContainerPort {
        pub name: String,
        pub container_port: u16,
        pub protocol: Protocol,
    }
}

api_enum! {
    PodPhase {
        Unset = "",
        Pending = "Pending",
        Running = "Running",
        Succeeded = "Succeeded",
        Failed = "Failed",
        Unknown = "Unknown",
    }
}

api! {
    pub struct PodIp {
        pub ip: Text,
    }
}

api! {
    pub struct PodCondition {
        pub r#type: String,
        pub status: String,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, ports: &[&str]) -> Container {
        let port = |name: &&str| ContainerPort {
            name: (*name).to_owned(),
            container_port: 80,
            ..ContainerPort::default()
        };
        Container {
            name: name.to_owned(),
            ports: ports.iter().map(port).collect(),
            ..Container::default()
        }
    }

    #[test]
    fn what_is_read_stays() {
        let condition = |r#type: &str| PodCondition {
            r#type: r#type.to_owned(),
            status: "True".to_owned(),
        };
        let ip = |ip: &str| PodIp { ip: ip.into() };
        let mut pod = Pod {
            containers: vec![container("a", &[]), container("b", &["", "http"])],
            init_containers: vec![container("c", &[""])],
            conditions: vec![condition("Initialized"), condition("Ready")],
            pod_ip: "10.0.0.1".into(),
            pod_ips: vec![ip("10.0.0.1")],
            ..Pod::default()
        };
        let mut both = pod.clone();
        both.pod_ips.push(ip("2001:db8::1"));
        let (addresses, two): (Vec<Text>, Vec<Text>) =
            (pod.ips().cloned().collect(), both.ips().cloned().collect());
        pod.trim();
        both.trim();
        assert_eq!(pod.containers, [container("b", &["", "http"])]);
        assert!(pod.init_containers.is_empty() && pod.pod_ips.is_empty());
        assert_eq!(pod.conditions, [condition("Ready")]);
        assert!(pod.is_ready());
        assert!(pod.ips().eq(&addresses) && both.ips().eq(&two));
    }
}
