//! VirtualServices.

use crate::support::{object, tells};

fn vs(name: &str, created: u32, spec: &str) -> String {
    object("VirtualService", name, created, spec)
}

/// A VirtualService of the mesh for a host of its own, with one route.
fn route(to: &str) -> String {
    vs(
        "shop/x",
        1,
        &format!("{{hosts: [x.example], http: [{{route: [{{destination: {to}}}]}}]}}"),
    )
}

#[test]
fn unknown_destinations() {
    let at = "VirtualService/shop/x spec.http[0].route[0].destination";
    tells(
        &format!("unknown-host {at}.host"),
        &route("{host: nowhere}"),
        &route("{host: web.shop.svc.cluster.local, port: {number: 80}}"),
    );
    tells(
        &format!("unknown-port {at}.port"),
        &route("{host: web, port: {number: 81}}"),
        &route("{host: web, port: {number: 9000}}"),
    );
    tells(
        &format!("unknown-subset {at}.subset"),
        &route("{host: web, port: {number: 80}, subset: v3}"),
        &route("{host: web, port: {number: 80}, subset: v2}"),
    );
}

#[test]
fn a_host_without_its_domain_is_hinted_at() {
    let text = format!(
        "{}---\n{}",
        crate::support::BASE,
        route("{host: web.shop, port: {number: 80}}")
    );
    let all = pilotfish_analysis::analyze(&crate::support::world(&text));
    let reason = "no service has host web.shop; there is web.shop.svc.cluster.local";
    assert!(all.iter().any(|d| d.reason == reason), "{all:?}");
}

#[test]
fn mirrors_and_streams_are_looked_at() {
    tells(
        "unknown-host VirtualService/shop/x spec.http[0].mirrors[0].destination.host",
        &vs(
            "shop/x",
            1,
            "{hosts: [x.example], http: [{route: [{destination: {host: db}}], mirrors: [{destination: {host: nowhere}}]}]}",
        ),
        &vs(
            "shop/x",
            1,
            "{hosts: [x.example], http: [{route: [{destination: {host: db}}], mirrors: [{destination: {host: db}}]}]}",
        ),
    );
    tells(
        "unknown-host VirtualService/shop/x spec.tcp[0].route[0].destination.host",
        &vs(
            "shop/x",
            1,
            "{hosts: [db], tcp: [{route: [{destination: {host: nowhere}}]}]}",
        ),
        &vs(
            "shop/x",
            1,
            "{hosts: [db], tcp: [{route: [{destination: {host: db}}]}]}",
        ),
    );
}

#[test]
fn a_port_must_be_chosen_where_the_request_does_not_tell() {
    let at = "port-required VirtualService/shop/x spec.http[0].route[0].destination.port";
    let gateway = |to: &str| {
        vs(
            "shop/x",
            1,
            &format!(
                "{{hosts: [shop.example], gateways: [edge/g], http: [{{match: [{{uri: {{prefix: /x}}}}], route: [{{destination: {to}}}]}}]}}"
            ),
        )
    };
    // Port 443 of the gateway is no port of web, which has two.
    tells(at, &gateway("{host: web}"), &gateway("{host: db}"));
    tells(
        at,
        &gateway("{host: web}"),
        &vs(
            "shop/x",
            1,
            "{hosts: [shop.example], gateways: [edge/g], http: [{match: [{uri: {prefix: /x}, port: 80}], route: [{destination: {host: web}}]}]}",
        ),
    );
}

#[test]
fn gateways_must_be_there_and_serve_the_host() {
    let bound = |hosts: &str, gateway: &str| {
        vs(
            "shop/x",
            9,
            &format!(
                "{{hosts: {hosts}, gateways: [{gateway}], http: [{{match: [{{uri: {{prefix: /x}}}}], route: [{{destination: {{host: db}}}}]}}]}}"
            ),
        )
    };
    tells(
        "unknown-gateway VirtualService/shop/x spec.gateways[0]",
        &bound("[shop.example]", "g"),
        &bound("[shop.example]", "edge/g"),
    );
    tells(
        "host-not-served VirtualService/shop/x spec.gateways[0]",
        &bound("[other.example]", "edge/g"),
        &bound("[\"*.example\"]", "edge/g"),
    );
    tells(
        "host-not-served VirtualService/shop/x spec.hosts[1]",
        &bound("[shop.example, other.example]", "edge/g"),
        &bound("[shop.example]", "edge/g"),
    );
}

#[test]
fn gateways_may_serve_some_namespaces_only() {
    let gateway = |host: &str| {
        object(
            "Gateway",
            "edge/own",
            1,
            &format!(
                "{{selector: {{istio: edge}}, servers: [{{port: {{number: 80, name: http, protocol: HTTP}}, hosts: [\"{host}\"]}}]}}"
            ),
        )
    };
    let bound = vs(
        "shop/x",
        9,
        "{hosts: [a.example], gateways: [edge/own], http: [{route: [{destination: {host: db}}]}]}",
    );
    tells(
        "host-not-served VirtualService/shop/x spec.gateways[0]",
        &format!("{}{bound}", gateway("./a.example")),
        &format!("{}{bound}", gateway("shop/*")),
    );
}

#[test]
fn conditions_name_gateways_that_are_bound() {
    let with = |gateway: &str| {
        vs(
            "shop/x",
            9,
            &format!(
                "{{hosts: [shop.example], gateways: [edge/g], http: [{{match: [{{gateways: [{gateway}], uri: {{prefix: /x}}}}], route: [{{destination: {{host: db}}}}]}}]}}"
            ),
        )
    };
    tells(
        "unbound-gateway VirtualService/shop/x spec.http[0].match[0].gateways",
        &with("mesh"),
        &with("edge/g"),
    );
}

#[test]
fn routes_fit_the_protocol_of_the_hosts() {
    let http = "http: [{route: [{destination: {host: db}}]}]";
    let tcp = "tcp: [{route: [{destination: {host: db}}]}]";
    tells(
        "protocol-mismatch VirtualService/shop/x spec.http",
        &vs("shop/x", 1, &format!("{{hosts: [db], {http}}}")),
        &vs("shop/x", 1, &format!("{{hosts: [db], {tcp}}}")),
    );
}

#[test]
fn delegates() {
    let root = |to: &str, condition: &str| {
        vs(
            "shop/root",
            1,
            &format!(
                "{{hosts: [x.example], http: [{{match: [{{uri: {{prefix: {condition}}}}}], delegate: {to}}}]}}"
            ),
        )
    };
    let leaf = |more: &str| {
        vs(
            "shop/leaf",
            1,
            &format!(
                "{{http: [{{match: [{{uri: {{prefix: /a/b}}}}], route: [{{destination: {{host: db}}}}]}}]{more}}}"
            ),
        )
    };
    let good = format!("{}{}", root("{name: leaf}", "/a"), leaf(""));
    let at = "VirtualService/shop/root spec.http[0].delegate";
    tells(
        &format!("unknown-delegate {at}"),
        &root("{name: nobody}", "/a"),
        &good,
    );
    tells(
        &format!("no-delegate {at}"),
        &root("{name: inner}", "/a"),
        &good,
    );
    tells(
        &format!("hidden-delegate {at}"),
        &format!(
            "{}{}",
            root("{name: leaf}", "/a"),
            leaf(", exportTo: [edge]")
        ),
        &format!(
            "{}{}",
            root("{name: leaf}", "/a"),
            leaf(", exportTo: [shop]")
        ),
    );
    tells(
        "delegate-conflict VirtualService/shop/leaf spec.http[0].match",
        &format!("{}{}", root("{name: leaf}", "/c"), leaf("")),
        &good,
    );
    tells(
        "unused-delegate VirtualService/shop/leaf spec.hosts",
        &leaf(""),
        &good,
    );
}

#[test]
fn one_host_of_the_mesh_belongs_to_the_oldest() {
    let claim = |name: &str, created, export: &str| {
        vs(
            name,
            created,
            &format!(
                "{{hosts: [db.shop.svc.cluster.local], exportTo: [{export}], tcp: [{{route: [{{destination: {{host: db.shop.svc.cluster.local}}}}]}}]}}"
            ),
        )
    };
    let first = claim("shop/first", 1, "\"*\"");
    tells(
        "host-claimed VirtualService/edge/second spec.hosts[0]",
        &format!("{first}{}", claim("edge/second", 2, "edge")),
        &format!(
            "{}{}",
            claim("shop/first", 1, "shop"),
            claim("edge/second", 2, "edge")
        ),
    );
    // A wildcard and a host under it do not meet: the more specific one counts.
    tells(
        "host-claimed VirtualService/shop/inner spec.hosts[0]",
        &vs(
            "shop/a",
            0,
            "{hosts: [web.shop.svc.cluster.local], http: [{route: [{destination: {host: db}}]}]}",
        )
        .replace(", creationTimestamp: \"2024-01-01T00:00:00Z\"", ""),
        &vs(
            "shop/a",
            0,
            "{hosts: [\"*.shop.svc.cluster.local\"], http: [{route: [{destination: {host: db}}]}]}",
        ),
    );
}

#[test]
fn at_a_gateway_nothing_follows_a_catch_all() {
    let more = |name: &str| {
        vs(
            name,
            9,
            "{hosts: [shop.example], gateways: [edge/g], http: [{match: [{uri: {prefix: /x}}], route: [{destination: {host: db}}]}]}",
        )
    };
    // `outer` has no date, so that it is older; it takes everything.
    tells(
        "unreachable-route VirtualService/shop/x spec.http",
        &more("shop/x"),
        &vs(
            "shop/x",
            9,
            "{hosts: [shop.example], http: [{match: [{uri: {prefix: /x}}], route: [{destination: {host: db}}]}]}",
        ),
    );
}

#[test]
fn exports_to_namespaces_that_are_there() {
    let to = |namespace: &str| {
        vs(
            "shop/x",
            1,
            &format!(
                "{{hosts: [x.example], exportTo: [\"{namespace}\"], http: [{{route: [{{destination: {{host: db}}}}]}}]}}"
            ),
        )
    };
    tells(
        "unknown-namespace VirtualService/shop/x spec.exportTo[0]",
        &to("nowhere"),
        &to("edge"),
    );
    let entry = |namespace: &str| {
        object(
            "ServiceEntry",
            "shop/x",
            1,
            &format!(
                "{{hosts: [x.example], ports: [{{number: 80, name: http, protocol: HTTP}}], resolution: DNS, exportTo: [\"{namespace}\"]}}"
            ),
        )
    };
    tells(
        "exported-to-nobody ServiceEntry/shop/x spec.exportTo",
        &entry("~"),
        &entry("."),
    );
}
