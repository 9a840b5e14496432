//! Header names and values.

/// The characters of an HTTP token.
pub(super) fn is_token(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Whether the name matches a claim of a token instead of a header.
pub(super) fn is_claim(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("@request.auth.claims") else {
        return false;
    };
    rest.len() > 1
        && (rest.starts_with('.') || rest.starts_with('[') && rest.ends_with(']') && rest.len() > 2)
}

/// A header that a route may match on.
pub(super) fn matched(name: &str) -> Result<(), String> {
    let pseudo = [":method", ":scheme", ":authority", ":path", ":status"];
    if is_claim(name) || pseudo.contains(&name) || is_token(name) {
        return Ok(());
    }
    Err(format!(
        "invalid header name {:?}",
        name.chars().take(64).collect::<String>()
    ))
}

/// Whether setting the header sets the authority.
pub(super) fn is_authority(name: &str) -> bool {
    name.eq_ignore_ascii_case(":authority") || name.eq_ignore_ascii_case("host")
}

/// A header that a route may add or set; only a request has an authority.
pub(super) fn written(name: &str, request: bool) -> Result<(), &'static str> {
    if name.is_empty() {
        Err("the header name must not be empty")
    } else if is_authority(name) && request {
        Ok(())
    } else if is_authority(name) {
        Err("the authority cannot be changed here")
    } else if name.starts_with(':') {
        Err("a pseudo header cannot be changed")
    } else {
        Ok(())
    }
}

/// A value for Envoy, in which `%COMMAND(arguments)%` is replaced and `%%` is a percent sign.
pub(super) fn value(text: &str) -> Result<(), &'static str> {
    if text
        .chars()
        .any(|c| matches!(c, '\0'..='\u{8}' | '\n'..='\u{1f}' | '\u{7f}'))
    {
        return Err("the header value has control characters");
    }
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            rest = after;
            continue;
        }
        if rest.is_empty() {
            return Err("the header value ends in a single %; write %% for a percent sign");
        }
        let end = rest
            .find(['%', '('])
            .ok_or("the header value has a % that is not closed")?;
        if rest.as_bytes()[end] == b'(' {
            let close = rest[end..]
                .find(')')
                .ok_or("the header value has a ( that is not closed")?;
            rest = rest[end + close + 1..].trim_start_matches(' ');
            rest = rest
                .strip_prefix('%')
                .ok_or("the header value has a command that does not end in %")?;
        } else {
            rest = &rest[end + 1..];
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        for good in [
            "",
            "foo",
            "%HOSTNAME%",
            "100%%",
            "a %HOSTNAME% b",
            "%REQ(x-a?y)%",
            "%DYNAMIC_METADATA([\"a\", \"b\"])%",
        ] {
            assert_eq!(value(good), Ok(()), "{good}");
        }
        for bad in [
            "100%",
            "abc%123",
            "%START_TIME%%",
            "%REQ(x",
            "%REQ(x) y%",
            "a\nb",
        ] {
            assert!(value(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names() {
        assert!(
            matched("x-a").is_ok()
                && matched(":path").is_ok()
                && matched("@request.auth.claims[a]").is_ok()
        );
        assert!(
            matched("").is_err()
                && matched("a b").is_err()
                && matched("@request.auth.claims").is_err()
        );
        assert!(
            written("Host", true).is_ok()
                && written("Host", false).is_err()
                && written(":path", true).is_err()
        );
    }
}
