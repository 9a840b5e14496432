//! Durations, base64 and mesh settings.

use pilotfish_config::mesh::{IngressControllerMode, MeshConfig};
use pilotfish_config::{Duration, base64, parse};
use proptest::prelude::*;

#[test]
fn durations_are_read_like_go_does() {
    for (text, nanos) in [
        ("0", 0),
        ("0s", 0),
        ("1s", 1_000_000_000),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("100ms", 100_000_000),
        ("5us", 5_000),
        ("7ns", 7),
        ("1h30m", 5_400_000_000_000),
        ("1m0.25s", 60_250_000_000),
        ("+2s", 2_000_000_000),
        ("0.1234567891s", 123_456_789),
    ] {
        let duration: Duration = text.parse().unwrap();
        assert_eq!(duration.get().as_nanos(), nanos, "{text}");
    }
    for bad in [
        "",
        "s",
        "1",
        "1x",
        "1 s",
        "-1s",
        "1.2.3s",
        "1s2",
        "one",
        ".s",
        "1e3s",
        "99999999999h",
        "٣s",
        "1µµs",
    ] {
        assert!(bad.parse::<Duration>().is_err(), "{bad}");
    }
    assert_eq!(
        "1h1ms".parse::<Duration>().unwrap().to_string(),
        "3600.001s"
    );
}

proptest! {
    #[test]
    fn durations_round_trip(secs in 0_u64..315_576_000_000, nanos in 0_u32..1_000_000_000) {
        let duration = Duration(std::time::Duration::new(secs, nanos));
        prop_assert_eq!(duration.to_string().parse::<Duration>().unwrap(), duration);
    }

    #[test]
    fn any_text_is_a_duration_or_not(text in ".{0,40}") {
        let _ = text.parse::<Duration>();
    }

    #[test]
    fn base64_round_trips(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        prop_assert_eq!(base64::decode(&base64::encode(&bytes)), Some(bytes));
    }

    /// No text makes the parser panic, and every finding has a place in the file.
    #[test]
    fn any_text_is_parsed(text in "[ -~\n\t]{0,200}") {
        let parsed = parse::documents(&text, "f");
        for diagnostic in &parsed.diagnostics {
            let origin = diagnostic.origin.as_ref().expect("a place");
            prop_assert!(origin.line as usize <= text.lines().count() + 2, "{}", diagnostic);
        }
    }

    /// A valid object with any one line damaged never panics and never loses its neighbour.
    #[test]
    fn any_damaged_line_costs_one_document(line in 0_usize..12, damage in "[ -~]{0,30}") {
        let good = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata:\n  name: a\nspec:\n  hosts: [a.b]\n  \
                    http:\n  - match:\n    - uri: {prefix: /}\n    route:\n    - destination:\n        host: a\n";
        prop_assume!(!damage.starts_with("---") && !damage.starts_with("..."));
        let damaged: String =
            good.lines().enumerate().map(|(i, text)| if i == line { damage.as_str() } else { text }).collect::<Vec<_>>().join("\n");
        let other = good.replace("name: a", "name: other");
        let parsed = parse::documents(&format!("{damaged}\n---\n{other}"), "f");
        prop_assert!(parsed.objects.iter().any(|object| &*object.key.name == "other"), "{:?}", parsed.diagnostics);
    }
}

#[test]
fn base64_that_is_none() {
    for bad in ["a", "ab=c", "====", "a b", "abc!", "ab==="] {
        assert_eq!(base64::decode(bad), None, "{bad}");
    }
    assert_eq!(base64::decode("YWI").as_deref(), Some(&b"ab"[..]));
    assert_eq!(base64::decode("YW\nI=").as_deref(), Some(&b"ab"[..]));
}

#[test]
fn mesh_settings_are_laid_over_the_defaults() {
    let text = "
enableTracing: false
ingressControllerMode: \"OFF\"
default_config:
  proxyMetadata: {A: b}
  tracingServiceName: CANONICAL_NAME_ONLY
extensionProviders:
- name: prometheus
  prometheus: {}
- name: mine
  zipkin: {service: zipkin.example.com, port: 9411}
trustDomainAliases: [b, a, b]
meshMTLS: {minProtocolVersion: TLSV1_3}
";
    let (mesh, diagnostics) = parse::mesh_config(text, "mesh.yaml");
    assert_eq!(diagnostics, []);
    let mesh = mesh.unwrap();
    assert!(!mesh.enable_tracing);
    assert_eq!(mesh.ingress_controller_mode, IngressControllerMode::Off);
    assert_eq!(mesh.trust_domain, "cluster.local");
    assert_eq!(mesh.trust_domain_aliases, ["a", "b"]);
    let names: Vec<&str> = mesh
        .extension_providers
        .iter()
        .map(|provider| provider.name.as_str())
        .collect();
    assert_eq!(names, ["prometheus", "stackdriver", "envoy", "mine"]);
    let proxy = mesh.default_config.unwrap();
    assert_eq!(proxy.proxy_metadata["A"], "b");
    assert_eq!(
        (proxy.service_cluster, proxy.proxy_admin_port),
        (None, 15000)
    );

    let (mesh, diagnostics) = parse::mesh_config("", "mesh.yaml");
    assert_eq!(
        (mesh, diagnostics),
        (Some(MeshConfig::standard()), Vec::new())
    );
}

#[test]
fn bad_mesh_settings_are_reported_where_they_are() {
    for (text, expected, usable) in [
        (
            "a: 1\nenableTracingg: true\n",
            "enableTracingg: unknown field; did you mean enableTracing?; the field is ignored (mesh.yaml:2)",
            true,
        ),
        (
            "\nproxyListenPort: x\n",
            "proxyListenPort: expected an integer",
            false,
        ),
        ("connectTimeout: 1d\n", "invalid duration \"1d\"", false),
        (
            "ingressControllerMode: OFF\n",
            "(in quotes), found false",
            false,
        ),
        (
            "trustDomain: a_b\n",
            "trustDomain: is not a domain name",
            false,
        ),
        ("trustDomain: [\n", "invalid YAML", false),
        ("- a\n", "expected an object", false),
        ("a: 1\n---\nb: 2\n", "more than one document", false),
        (
            "defaultConfig:\n  discoveryAddress: nowhere\n",
            "is not of the form host:port; the file is not used; the last good settings stay (mesh.yaml:2)",
            false,
        ),
    ] {
        let (mesh, diagnostics) = parse::mesh_config(text, "mesh.yaml");
        let report: Vec<String> = diagnostics.iter().map(ToString::to_string).collect();
        assert!(
            report.iter().any(|line| line.contains(expected)),
            "{text}: {report:?}"
        );
        assert_eq!(mesh.is_some(), usable, "{text}");
    }
    let (networks, diagnostics) = parse::mesh_networks(
        "networks:\n  n:\n    gateways: [{address: 1.2.3.4, port: 0}]\n",
        "n.yaml",
    );
    assert!(networks.is_none());
    assert!(
        diagnostics[0]
            .to_string()
            .contains("networks.n.gateways[0].port: port 0 is not in the range"),
        "{diagnostics:?}"
    );
}
