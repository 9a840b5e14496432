//! `RequestAuthentication`.

use serde_json::Value;

use super::common::{at_most_one, attachment, optional_duration};
use crate::finding::Checker;
use crate::security::{JwtRule, RequestAuthentication};

pub(super) fn check(check: &mut Checker, auth: &RequestAuthentication) {
    attachment(
        check,
        auth.selector.as_ref(),
        auth.target_ref.as_ref(),
        &auth.target_refs,
    );
    check.each("jwtRules", &auth.jwt_rules, jwt_rule);
}

fn jwt_rule(check: &mut Checker, rule: &JwtRule) {
    if rule.issuer.is_empty() && rule.jwks_uri.is_empty() {
        check.error("one of issuer and jwksUri is required");
    }
    for (name, list) in [
        ("audiences", &rule.audiences),
        ("fromParams", &rule.from_params),
        ("fromCookies", &rule.from_cookies),
        ("spaceDelimitedClaims", &rule.space_delimited_claims),
    ] {
        check.each(name, list, |check, text| {
            if text.is_empty() {
                check.error("must not be empty");
            }
        });
    }
    at_most_one(
        check,
        &[
            ("jwksUri", !rule.jwks_uri.is_empty()),
            ("jwks", !rule.jwks.is_empty()),
        ],
    );
    if !rule.jwks_uri.is_empty() {
        check.result("jwksUri", uri(&rule.jwks_uri));
    }
    if !rule.jwks.is_empty() {
        check.field("jwks", |check| jwks(check, &rule.jwks));
    }
    check.each("fromHeaders", &rule.from_headers, |check, header| {
        check.error_if(header.name.is_empty(), "name", "must not be empty");
    });
    check.each(
        "outputClaimToHeaders",
        &rule.output_claim_to_headers,
        |check, output| {
            check.error_if(output.claim.is_empty(), "claim", "must not be empty");
            let valid = !output.header.is_empty()
                && output
                    .header
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
            check.error_if(!valid, "header", "invalid header name");
        },
    );
    optional_duration(check, "timeout", rule.timeout);
}

/// `http://host[:port]/...` or `https://...`.
fn uri(text: &str) -> Result<(), String> {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"))
        .ok_or("must begin with http:// or https://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host_port = authority.rsplit('@').next().unwrap_or_default();
    let (host, port) = match host_port.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (host_port, None),
    };
    let bad_port = port.is_some_and(|port| !port.is_empty() && port.parse::<u16>().is_err());
    if host.is_empty() || bad_port || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("is not a URL with a host".to_owned());
    }
    Ok(())
}

/// A key set, or one key. The keys themselves are left to the proxy.
fn jwks(check: &mut Checker, text: &str) {
    let Ok(Value::Object(set)) = serde_json::from_str(text) else {
        return check.error("is not a JSON object with keys");
    };
    let private = |key: &Value| {
        key.get("d").is_some() || key.get("kty").and_then(Value::as_str) == Some("oct")
    };
    match set.get("keys") {
        Some(Value::Array(keys)) => {
            if keys
                .iter()
                .any(|key| key.get("kty").and_then(Value::as_str).is_none())
            {
                check.error("has a key without kty");
            }
            if keys.iter().any(private) {
                check.warn(
                    "has a private key, of which only the public part is needed",
                    "it is sent to proxies",
                );
            }
        }
        None if set.contains_key("kty") => {}
        _ => check.error("has no keys"),
    }
}

#[cfg(test)]
mod tests {
    use super::uri;

    #[test]
    fn uris() {
        for good in [
            "https://a.example/keys",
            "http://a:8080/x",
            "https://[::1]:443/",
            "https://a",
        ] {
            assert_eq!(uri(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "a",
            "ftp://a/",
            "https:///x",
            "https://a:99999/",
            "https://a b/",
        ] {
            assert!(uri(bad).is_err(), "{bad}");
        }
    }
}
