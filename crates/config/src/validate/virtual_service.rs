//! `VirtualService`.

use super::common::{AS_WRITTEN, export_to, labels, port};
use super::{header, host, http_route};
use crate::finding::Checker;
use crate::names::is_host_label;
use crate::networking::overlap::Conditions;
use crate::networking::{
    Destination, L4MatchAttributes, RouteDestination, TcpRoute, TlsRoute, VirtualService,
};

/// The gateway that stands for all sidecars.
const MESH: &str = "mesh";

pub(super) fn check(check: &mut Checker, service: &VirtualService, namespace: &str) {
    let delegate = service.hosts.is_empty();
    if delegate {
        let only_http = "a virtual service without hosts is a delegate, which has http routes only";
        check.error_if(!service.gateways.is_empty(), "gateways", only_http);
        check.error_if(!service.tls.is_empty(), "tls", only_http);
        check.error_if(!service.tcp.is_empty(), "tcp", only_http);
    }
    gateways(check, &service.gateways);
    let at_gateway =
        !service.gateways.is_empty() && !service.gateways.iter().any(|name| name == MESH);
    hosts(check, service, at_gateway);
    if service.http.is_empty() && service.tcp.is_empty() && service.tls.is_empty() {
        check.error("one of http, tcp and tls is required");
    }
    check.each("http", &service.http, |check, route| {
        http_route::check(check, route, delegate);
        if !at_gateway {
            check.each("match", &route.r#match, |check, request| {
                for name in request.headers.keys().chain(request.without_headers.keys()) {
                    if header::is_claim(name) {
                        check.error(format!("{name}: claims can be matched at gateways only"));
                    }
                }
            });
        }
    });
    check.each("tls", &service.tls, |check, route| {
        tls(check, route, service, at_gateway);
    });
    check.each("tcp", &service.tcp, tcp);
    export_to(check, &service.export_to, namespace, false);
    unreachable(check, service);
}

fn hosts(check: &mut Checker, service: &VirtualService, at_gateway: bool) {
    let sni = service
        .tls
        .iter()
        .any(|route| route.r#match.iter().any(|m| !m.sni_hosts.is_empty()));
    let mut valid = true;
    check.each("hosts", &service.hosts, |check, name| {
        let result = if at_gateway && sni {
            host::sni_domain(name)
        } else {
            host::wildcard_domain(name)
        };
        if let Err(reason) = result
            && !host::is_ip(name)
        {
            check.error(reason);
            valid = false;
        } else if name == "*" && !at_gateway {
            check.error("the host * is allowed at gateways only");
            valid = false;
        }
    });
    if !valid {
        return;
    }
    for (index, name) in service.hosts.iter().enumerate() {
        if let Some(other) = service.hosts[index + 1..]
            .iter()
            .find(|other| host::overlap(name, other))
        {
            check.field("hosts", |check| {
                check.error(format!("{name} and {other} overlap"));
            });
        }
    }
}

/// References to gateways: `name`, `namespace/name` or `mesh`.
pub(super) fn gateways(check: &mut Checker, gateways: &[String]) {
    check.each("gateways", gateways, |check, name| {
        match name.split_once('/') {
            Some((namespace, name)) => {
                if !is_host_label(namespace) || !is_host_label(name) {
                    check.error(format!(
                        "{namespace:?}/{name:?} is not of the form namespace/name"
                    ));
                }
            }
            None => {
                if let Err(reason) = host::domain(name) {
                    check.error(reason);
                } else if let Some((first, rest)) = name.split_once('.') {
                    let namespace = rest.split('.').next().unwrap_or_default();
                    check.warn(
                        format!("{name} is the old form, write {namespace}/{first}"),
                        AS_WRITTEN,
                    );
                }
            }
        }
    });
}

pub(super) fn destination(check: &mut Checker, destination: &Destination) {
    if destination.host == "*" {
        check.field("host", |check| check.error("* is not a destination"));
    } else {
        check.result("host", host::wildcard_domain(&destination.host));
    }
    check.error_if(
        !destination.subset.is_empty() && !is_host_label(&destination.subset),
        "subset",
        "invalid subset name",
    );
    check.some("port", destination.port.as_ref(), |check, selector| {
        check.result("number", port(selector.number));
    });
}

/// Weights of several destinations: none negative, not all zero, and a sum that Envoy can count.
pub(super) fn weights(check: &mut Checker, weights: &[i32]) {
    let negative = weights.iter().position(|weight| *weight < 0);
    if let Some(index) = negative {
        check.error(format!("the weight of destination {index} is negative"));
        return;
    }
    let sum: i64 = weights.iter().map(|weight| i64::from(*weight)).sum();
    if weights.len() > 1 && sum == 0 {
        check.error("the weights of all destinations are 0");
    }
    if sum > i64::from(u32::MAX) {
        check.error("the sum of the weights is too large");
    }
    if weights.len() > 1 && sum > 0 && sum != 100 {
        check.note(
            "weights",
            format!("the weights add up to {sum}, not to 100"),
            "each destination gets its share of the sum",
        );
    }
}

fn routes(check: &mut Checker, routes: &[RouteDestination]) {
    if routes.is_empty() {
        check.field("route", |check| {
            check.error("at least one destination is required");
        });
        return;
    }
    check.each("route", routes, |check, route| match &route.destination {
        Some(to) => check.field("destination", |check| destination(check, to)),
        None => check.error("destination is required"),
    });
    let all: Vec<i32> = routes.iter().map(|route| route.weight).collect();
    check.field("route", |check| weights(check, &all));
}

fn tcp(check: &mut Checker, route: &TcpRoute) {
    check.each("match", &route.r#match, |check, l4: &L4MatchAttributes| {
        check.each(
            "destinationSubnets",
            &l4.destination_subnets,
            |check, subnet| {
                if let Err(reason) = host::subnet(subnet) {
                    check.error(reason);
                }
            },
        );
        if l4.port != 0 {
            check.result("port", port(l4.port));
        }
        labels(check, "sourceLabels", &l4.source_labels);
        gateways(check, &l4.gateways);
    });
    routes(check, &route.route);
}

fn tls(check: &mut Checker, route: &TlsRoute, service: &VirtualService, at_gateway: bool) {
    if route.r#match.is_empty() {
        check.field("match", |check| {
            check.error("at least one match is required");
        });
    }
    check.each("match", &route.r#match, |check, matched| {
        if matched.sni_hosts.is_empty() {
            check.field("sniHosts", |check| {
                check.error("at least one name is required");
            });
        }
        check.each("sniHosts", &matched.sni_hosts, |check, name| {
            let result = if at_gateway {
                host::sni_domain(name)
            } else {
                host::wildcard_domain(name)
            };
            match result {
                Err(_) if host::is_ip(name) => {
                    check.warn(
                        "clients do not send an IP address as server name",
                        "most clients do not match",
                    );
                }
                Err(reason) => check.error(reason),
                Ok(()) if !service.hosts.iter().any(|outer| host::within(name, outer)) => {
                    check.error(format!(
                        "{name} is not covered by the hosts of the virtual service"
                    ));
                }
                Ok(()) => {}
            }
        });
        check.each(
            "destinationSubnets",
            &matched.destination_subnets,
            |check, subnet| {
                if let Err(reason) = host::subnet(subnet) {
                    check.error(reason);
                }
            },
        );
        if matched.port != 0 {
            check.result("port", port(matched.port));
        }
        labels(check, "sourceLabels", &matched.source_labels);
        gateways(check, &matched.gateways);
    });
    routes(check, &route.route);
}

/// Routes and conditions that earlier ones leave nothing for.
fn unreachable(check: &mut Checker, service: &VirtualService) {
    report(check, "http", &service.http);
    report(check, "tls", &service.tls);
    report(check, "tcp", &service.tcp);
}

/// Comparing each with each is quadratic; beyond this it is not worth a hint.
const COMPARED: usize = 500;

fn report<R: Conditions>(check: &mut Checker, name: &str, routes: &[R]) {
    const CODE: &str = "unreachable-route";
    let mut seen: Vec<(usize, usize, &R::Match)> = Vec::new();
    let mut catch_all = None;
    for (index, route) in routes.iter().enumerate() {
        let mut at = |inside: &mut dyn FnMut(&mut Checker)| {
            check.field(name, |check| check.index(index, inside));
        };
        if let Some(earlier) = catch_all {
            let reason = format!("route {earlier} before it matches everything");
            at(&mut |check| check.warn_as(CODE, &reason, "the route is never used"));
            continue;
        }
        let own = route.conditions();
        let covering = |condition: &R::Match| {
            let found = seen.iter().find(|(.., wide)| R::covers(wide, condition));
            found.map(|(route, number, _)| format!("condition {number} of route {route}"))
        };
        let covered: Vec<(usize, String)> = own
            .iter()
            .enumerate()
            .filter_map(|(number, condition)| Some((number, covering(condition)?)))
            .collect();
        if !own.is_empty() && covered.len() == own.len() {
            let reason = format!("{} matches everything that it does", covered[0].1);
            at(&mut |check| check.warn_as(CODE, &reason, "the route is never used"));
        } else {
            for (number, earlier) in covered {
                let reason = format!("{earlier} matches everything that it does");
                at(&mut |check| {
                    check.field("match", |check| {
                        check.index(number, |check| {
                            check.warn_as(
                                "unused-match",
                                &reason,
                                "the condition is never met here",
                            );
                        });
                    });
                });
            }
        }
        if route.is_final() && own.is_empty() {
            catch_all = Some(index);
        }
        if route.is_final() && seen.len() < COMPARED {
            seen.extend(own.iter().enumerate().map(|(n, c)| (index, n, c)));
        }
    }
}
