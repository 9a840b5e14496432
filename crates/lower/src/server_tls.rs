//! TLS that a server terminates, as a Gateway or a Sidecar describes it.

use pilotfish_config::mesh;
use pilotfish_config::networking::{ServerTlsMode, ServerTlsSettings, TlsProtocol};
use pilotfish_ir::tls::{
    CertificateFiles, ClientCheck, DownstreamTls, SecretSource, ServerTls, TlsLimits, TlsVersion,
};
use pilotfish_mesh::Reader;

use crate::secret::{ROOTS, credential};
use crate::{Text, chain};

/// What TLS is around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inside {
    Http,
    /// HTTP over QUIC, which cannot ask clients for certificates: only for servers that do not [demand](demands_certificate) them.
    Http3,
    Bytes,
}

/// Whether clients must show a certificate.
pub(crate) fn demands_certificate(tls: &ServerTlsSettings) -> bool {
    matches!(tls.mode, ServerTlsMode::Mutual | ServerTlsMode::IstioMutual)
}

/// The TLS of a server that terminates it. `own`: files that stand in for the workload's certificate.
pub(crate) fn terminate(
    reader: &Reader<'_>,
    own: &CertificateFiles,
    tls: &ServerTlsSettings,
    inside: Inside,
) -> DownstreamTls {
    use ServerTlsMode::{IstioMutual, OptionalMutual};
    let require_client = demands_certificate(tls);
    let check = require_client || tls.mode == OptionalMutual;
    let alpn: &[&str] = match inside {
        Inside::Http3 => &["h3"],
        Inside::Bytes
            if tls.mode == IstioMutual
                && !chain::feature(reader, "PILOT_DISABLE_MX_ALPN", false) =>
        {
            &["istio-peer-exchange", "h2", "http/1.1"]
        }
        Inside::Http | Inside::Bytes => &["h2", "http/1.1"],
    };
    let (certificates, clients) = if tls.mode == IstioMutual {
        let or_own = |file: &Option<Text>| match file {
            Some(name) => SecretSource::File(name.clone()),
            None => SecretSource::Workload,
        };
        let clients = ClientCheck {
            roots: Some(or_own(&own.roots)),
            revoked: text(&tls.ca_crl),
            ..named_clients(tls)
        };
        (vec![or_own(&own.certificate)], Some(clients))
    } else if tls.credential_names.is_empty() && tls.credential_name.is_empty() {
        (from_files(tls), check.then(|| clients_by_files(tls)))
    } else {
        by_credential(tls, check)
    };
    let limits = if tls.mode == IstioMutual {
        TlsLimits::default()
    } else {
        limits(reader, tls)
    };
    DownstreamTls::Server(Box::new(ServerTls {
        certificates,
        clients,
        require_client,
        alpn: texts(alpn),
        limits,
    }))
}

/// The secrets that a server names.
pub(crate) fn credentials(tls: &ServerTlsSettings) -> Vec<SecretSource> {
    let named = !tls.credential_names.is_empty() || !tls.credential_name.is_empty();
    if tls.is_passthrough() || tls.mode == ServerTlsMode::IstioMutual || !named {
        return Vec::new();
    }
    let (mut out, clients) = by_credential(tls, true);
    out.extend(clients.and_then(|c| c.roots));
    out
}

fn by_credential(tls: &ServerTlsSettings, check: bool) -> (Vec<SecretSource>, Option<ClientCheck>) {
    let names: Vec<&str> = if tls.credential_names.is_empty() {
        vec![&tls.credential_name]
    } else {
        tls.credential_names.iter().map(String::as_str).collect()
    };
    let roots = if tls.ca_cert_credential_name.is_empty() {
        // Envoy knows one set of roots for all certificates: the first one's.
        names
            .first()
            .map(|first| credential(&format!("{first}{ROOTS}")))
    } else {
        Some(credential(&tls.ca_cert_credential_name))
    };
    let clients = if check {
        Some(ClientCheck {
            roots,
            key_hashes: texts(&tls.verify_certificate_spki),
            certificate_hashes: texts(&tls.verify_certificate_hash),
            ..named_clients(tls)
        })
    } else {
        let names_only = ClientCheck {
            names: texts(&tls.subject_alt_names),
            ..Default::default()
        };
        (!tls.subject_alt_names.is_empty()).then_some(names_only)
    };
    (names.into_iter().map(credential).collect(), clients)
}

/// Certificates that are files of the proxy; its own where none are written.
fn from_files(tls: &ServerTlsSettings) -> Vec<SecretSource> {
    let file = |chain: &str, key: &str| {
        if chain.is_empty() || key.is_empty() {
            SecretSource::Workload
        } else {
            SecretSource::File(Text::from(format!("file-cert:{chain}~{key}")))
        }
    };
    if tls.tls_certificates.is_empty() {
        return vec![file(&tls.server_certificate, &tls.private_key)];
    }
    tls.tls_certificates
        .iter()
        .map(|c| file(&c.server_certificate, &c.private_key))
        .collect()
}

fn clients_by_files(tls: &ServerTlsSettings) -> ClientCheck {
    let roots = match text(&tls.ca_certificates) {
        Some(path) => SecretSource::File(Text::from(format!("file-root:{path}"))),
        None => SecretSource::Workload,
    };
    ClientCheck {
        roots: Some(roots),
        revoked: text(&tls.ca_crl),
        ..named_clients(tls)
    }
}

fn named_clients(tls: &ServerTlsSettings) -> ClientCheck {
    ClientCheck {
        names: texts(&tls.subject_alt_names),
        accept_untrusted: tls.insecure_skip_verify == Some(true),
        ..Default::default()
    }
}

/// What the server writes, else what the mesh does.
fn limits(reader: &Reader<'_>, tls: &ServerTlsSettings) -> TlsLimits {
    let version = |v: TlsProtocol| match v {
        TlsProtocol::TlsAuto => None,
        TlsProtocol::Tlsv1_0 => Some(TlsVersion::V1_0),
        TlsProtocol::Tlsv1_1 => Some(TlsVersion::V1_1),
        TlsProtocol::Tlsv1_2 => Some(TlsVersion::V1_2),
        TlsProtocol::Tlsv1_3 => Some(TlsVersion::V1_3),
    };
    let defaults = reader.mesh().tls_defaults.as_ref();
    let default_oldest = defaults.and_then(|d| match d.min_protocol_version {
        mesh::TlsProtocol::TlsAuto => None,
        mesh::TlsProtocol::Tlsv1_2 => Some(TlsVersion::V1_2),
        mesh::TlsProtocol::Tlsv1_3 => Some(TlsVersion::V1_3),
    });
    let ciphers = tls.usable_ciphers();
    TlsLimits {
        oldest: version(tls.min_protocol_version).or(default_oldest),
        newest: version(tls.max_protocol_version),
        ciphers: if ciphers.is_empty() {
            defaults
                .map(|d| texts(&d.cipher_suites))
                .unwrap_or_default()
        } else {
            texts(&ciphers)
        },
        curves: defaults.map(|d| texts(&d.ecdh_curves)).unwrap_or_default(),
    }
}

fn text(s: &str) -> Option<Text> {
    (!s.is_empty()).then(|| Text::from(s))
}

fn texts<S: AsRef<str>>(all: &[S]) -> Vec<Text> {
    all.iter().map(|s| Text::from(s.as_ref())).collect()
}
