//! What a session costs: `cargo run --release -p pilotfish-xds --example cost`.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "prints measurements"
)]

use std::sync::Arc;
use std::time::Instant;

use pilotfish_protos::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use pilotfish_xds::{
    Generation, Protocol, Resource, ResourceSet, SessionConfig, TypeUrl, View, delta,
};

const RESOURCES: usize = 5_000;
const SESSIONS: usize = 1_000;

fn resource(i: usize, content: u8) -> Arc<Resource> {
    let name = format!(
        "outbound|80||service-{i}.namespace-{}.svc.cluster.local",
        i % 20
    );
    Resource::wrap(
        TypeUrl::Cluster.as_str(),
        name.into(),
        &[content; 1500],
        Arc::from([]),
    )
}

fn resident() -> usize {
    let statm = std::fs::File::open("/proc/self/statm")
        .and_then(std::io::read_to_string)
        .unwrap_or_default();
    statm
        .split(' ')
        .nth(1)
        .and_then(|p| p.parse::<usize>().ok())
        .unwrap_or(0)
        * 4
}

fn push_all(what: &str, t: &TypeUrl, sessions: &mut [delta::Session], view: &View) {
    let start = Instant::now();
    let (mut bytes, mut acks) = (0, Vec::new());
    for session in sessions.iter_mut() {
        let response = session.push(t, view.clone(), Generation(1));
        bytes += response.as_ref().map_or(0, |r| r.frames.len());
        acks.push(response.map(|r| r.nonce));
    }
    let took = start.elapsed();
    for (session, nonce) in sessions.iter_mut().zip(acks) {
        let request = DeltaDiscoveryRequest {
            type_url: t.as_str().into(),
            response_nonce: nonce.map(|n| n.to_string()).unwrap_or_default(),
            ..DeltaDiscoveryRequest::default()
        };
        session.on_request(request).ok();
    }
    let each = took.as_secs_f64() * 1e6 / f64::from(u32::try_from(sessions.len()).unwrap_or(1));
    println!(
        "{what}: {each:.1} µs and {} bytes a session; {} kB resident",
        bytes / sessions.len(),
        resident()
    );
}

fn main() {
    let set: ResourceSet = (0..RESOURCES).map(|i| resource(i, 1)).collect();
    println!(
        "{RESOURCES} resources, {SESSIONS} sessions; {} kB resident",
        resident()
    );
    for (t, named) in [(TypeUrl::Cluster, false), (TypeUrl::Endpoints, true)] {
        let names: Vec<String> = set
            .iter()
            .filter(|_| named)
            .map(|r| r.name.to_string())
            .collect();
        let mut set = set.clone();
        let mut sessions: Vec<_> = (0..SESSIONS)
            .map(|_| {
                let mut session = delta::Session::new(SessionConfig::default());
                let request = DeltaDiscoveryRequest {
                    type_url: t.as_str().into(),
                    resource_names_subscribe: names.clone(),
                    ..DeltaDiscoveryRequest::default()
                };
                session.on_request(request).ok();
                session
            })
            .collect();
        println!(
            "{} by {}",
            t.short(),
            if named { "name" } else { "wildcard" }
        );
        push_all(
            "  first response",
            &t,
            &mut sessions,
            &View::new([set.clone()]),
        );
        push_all(
            "  nothing changed",
            &t,
            &mut sessions,
            &View::new([set.clone()]),
        );
        set.insert(resource(2500, 2));
        push_all(
            "  one changed",
            &t,
            &mut sessions,
            &View::new([set.clone()]),
        );
        set = (0..RESOURCES).map(|i| resource(i, 2)).collect();
        push_all("  all changed", &t, &mut sessions, &View::new([set]));
    }
}
