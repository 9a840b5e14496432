//! `Gateway`, and the TLS settings of servers.

use std::collections::BTreeSet;

use super::common::{AS_WRITTEN, Protocol, port, unix_path};
use super::host;
use crate::finding::Checker;
use crate::networking::{
    Gateway, Port, Server, ServerTlsMode, ServerTlsSettings, TlsProtocol, known_cipher,
};

pub(super) const UNIX: &str = "unix://";

pub(super) fn check(check: &mut Checker, gateway: &Gateway) {
    if gateway.servers.is_empty() {
        check.field("servers", |check| {
            check.error("at least one server is required");
        });
    }
    let mut names = BTreeSet::new();
    check.each("servers", &gateway.servers, |check, server: &Server| {
        if server.hosts.is_empty() {
            check.field("hosts", |check| {
                check.error("at least one host is required");
            });
        }
        check.each("hosts", &server.hosts, |check, name| {
            if let Err(reason) = host::namespaced(name, true) {
                check.error(reason);
            }
        });
        match &server.port {
            Some(port) => {
                check.field("port", |check| server_port(check, port, &server.bind));
                if !names.insert(port.name.clone()) {
                    check.field("port", |check| {
                        check.error(format!("the name {:?} is given twice", port.name));
                    });
                }
                tls_fits_port(check, server, port);
            }
            None => check.error("port is required"),
        }
        bind(check, server);
        check.some("tls", server.tls.as_ref(), server_tls);
    });
}

fn server_port(check: &mut Checker, own: &Port, bind: &str) {
    let known = Protocol::parse(&own.protocol).is_some();
    check.error_if(
        !known,
        "protocol",
        format!("unsupported protocol {:?}", own.protocol),
    );
    if own.number > 0 || !bind.starts_with(UNIX) {
        check.result("number", port(own.number));
    }
    check.error_if(
        own.target_port > 0,
        "targetPort",
        "has no meaning for gateways",
    );
    check.error_if(own.name.is_empty(), "name", "must not be empty");
}

fn bind(check: &mut Checker, server: &Server) {
    if let Some(path) = server.bind.strip_prefix(UNIX) {
        check.result("bind", unix_path(path));
        let numbered = server.port.as_ref().is_some_and(|port| port.number != 0);
        check.error_if(numbered, "port", "the number must be 0 for a unix socket");
    } else if !server.bind.is_empty() {
        check.result("bind", host::ip(&server.bind));
    }
}

fn tls_fits_port(check: &mut Checker, server: &Server, port: &Port) {
    let Some(protocol) = Protocol::parse(&port.protocol) else {
        return;
    };
    match &server.tls {
        None if protocol.is_tls() => {
            check.error(format!("tls is required for protocol {}", port.protocol));
        }
        Some(tls) if !protocol.is_tls() => {
            let only_redirect = tls.is_passthrough()
                && tls.ca_certificates.is_empty()
                && tls.private_key.is_empty()
                && tls.server_certificate.is_empty();
            if !protocol.is_http() || !only_redirect {
                check.field("tls", |check| {
                    check.error(format!(
                        "is not possible for protocol {}, only httpsRedirect is",
                        port.protocol
                    ));
                });
            }
        }
        _ => {}
    }
    if server.tls.as_ref().is_some_and(|tls| tls.https_redirect) && !protocol.is_http() {
        check.field("tls", |check| {
            check.warn("httpsRedirect is for HTTP servers", "nothing is redirected");
        });
    }
}

pub(super) fn server_tls(check: &mut Checker, tls: &ServerTlsSettings) {
    ciphers(check, tls);
    let files = !tls.server_certificate.is_empty()
        || !tls.private_key.is_empty()
        || !tls.ca_certificates.is_empty()
        || !tls.tls_certificates.is_empty();
    let named = !tls.credential_name.is_empty() || !tls.credential_names.is_empty();
    match tls.mode {
        ServerTlsMode::IstioMutual => {
            if files || named {
                check.error(
                    "mode ISTIO_MUTUAL uses the workload's certificate, no other can be given",
                );
            }
            return;
        }
        ServerTlsMode::Passthrough | ServerTlsMode::AutoPassthrough
            if files || named || !tls.ca_crl.is_empty() =>
        {
            check.warn(
                format!("mode {} does not use certificates", tls.mode),
                "they are ignored",
            );
        }
        _ => {}
    }
    let sources = [
        !tls.server_certificate.is_empty() && !tls.private_key.is_empty(),
        !tls.credential_name.is_empty(),
        !tls.credential_names.is_empty(),
        !tls.tls_certificates.is_empty(),
    ];
    if sources.into_iter().filter(|given| *given).count() > 1 {
        check.error(
            "only one of credentialName, credentialNames, serverCertificate with privateKey, and tlsCertificates may be set",
        );
    }
    let mutual = matches!(
        tls.mode,
        ServerTlsMode::Mutual | ServerTlsMode::OptionalMutual
    );
    if mutual || tls.mode == ServerTlsMode::Simple {
        if !named {
            certificates(check, tls, mutual);
        }
        check.error_if(
            !tls.ca_crl.is_empty()
                && (!tls.credential_name.is_empty() || tls.mode == ServerTlsMode::Simple),
            "caCrl",
            "is not possible with credentialName or mode SIMPLE",
        );
    }
}

/// Certificates that are files of the proxy.
fn certificates(check: &mut Checker, tls: &ServerTlsSettings, mutual: bool) {
    let mode = tls.mode;
    check.error_if(
        mutual && tls.ca_certificates.is_empty(),
        "caCertificates",
        format!("is required for mode {mode}"),
    );
    if tls.tls_certificates.is_empty() {
        check.error_if(
            tls.server_certificate.is_empty(),
            "serverCertificate",
            format!("is required for mode {mode}, or credentialName"),
        );
        check.error_if(
            tls.private_key.is_empty(),
            "privateKey",
            format!("is required for mode {mode}, or credentialName"),
        );
    }
    if tls.tls_certificates.len() > 2 {
        check.field("tlsCertificates", |check| {
            check.warn("more than two certificates", "the proxy may refuse them");
        });
    }
    check.each(
        "tlsCertificates",
        &tls.tls_certificates,
        |check, certificate| {
            check.error_if(
                certificate.server_certificate.is_empty(),
                "serverCertificate",
                "must not be empty",
            );
            check.error_if(
                certificate.private_key.is_empty(),
                "privateKey",
                "must not be empty",
            );
        },
    );
}

fn ciphers(check: &mut Checker, tls: &ServerTlsSettings) {
    let old = matches!(
        tls.min_protocol_version,
        TlsProtocol::Tlsv1_0 | TlsProtocol::Tlsv1_1
    );
    if old && tls.cipher_suites.is_empty() {
        check.field("minProtocolVersion", |check| {
            check.warn(
                "versions below TLSV1_2 need cipherSuites that fit them",
                AS_WRITTEN,
            );
        });
    }
    let mut seen = BTreeSet::new();
    check.each("cipherSuites", &tls.cipher_suites, |check, suite| {
        if !known_cipher(suite) {
            check.warn(format!("unknown cipher suite {suite:?}"), "it is ignored");
        } else if !seen.insert(suite.clone()) {
            check.warn(format!("{suite:?} is given twice"), "the second is ignored");
        }
    });
}
