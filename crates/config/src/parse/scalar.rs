//! What an unquoted YAML word means: the reading of `kubectl`, so that a manifest means here what it means there.
//!
//! That is YAML 1.1 for booleans (`yes`, `on`), octal numbers (`0755`) and digit groups (`1_000`); times stay text.

use serde_json::{Number, Value};

/// The value of a plain scalar; `None` if JSON has no such value (infinity, not a number).
pub(super) fn resolve(text: &str) -> Option<Value> {
    Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => {
            Value::Bool(true)
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            Value::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF"
        | "-.inf" | "-.Inf" | "-.INF" => return None,
        _ if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) => {
            number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number)
        }
        _ => Value::String(text.to_owned()),
    })
}

fn number(text: &str) -> Option<Number> {
    // Only the characters a number can have: this sorts out versions, times and addresses without work.
    let valid = |c: char| {
        c.is_ascii_hexdigit() || matches!(c, '+' | '-' | '.' | '_' | 'x' | 'X' | 'o' | 'O')
    };
    if text.len() > 64 || !text.chars().all(valid) {
        return None;
    }
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    integer(&plain).or_else(|| float(&plain))
}

fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', _, ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', _, ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        let value = 0_i64.checked_sub_unsigned(magnitude)?;
        Some(value.into())
    } else {
        Some(magnitude.into())
    }
}

fn float(text: &str) -> Option<Number> {
    let unsigned = text.trim_start_matches(['+', '-']);
    let shape = text.len() - unsigned.len() <= 1
        && unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && unsigned.contains(|c: char| c.is_ascii_digit())
        && unsigned
            .chars()
            .all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'));
    if !shape {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    // JSON writes 3.0 as 3, which Kubernetes takes for an integer.
    #[expect(clippy::float_cmp, reason = "asks exactly whether there is a fraction")]
    if value.trunc() == value && value.abs() < 9_007_199_254_740_992.0 {
        return Some((value as i64).into());
    }
    Number::from_f64(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_mean_what_kubectl_says() {
        for (text, value) in [
            ("yes", json!(true)),
            ("Off", json!(false)),
            ("~", json!(null)),
            ("", json!(null)),
            ("80", json!(80)),
            ("0755", json!(493)),
            ("0o17", json!(15)),
            ("0x1F", json!(31)),
            ("0b11", json!(3)),
            ("-5", json!(-5)),
            ("+5", json!(5)),
            ("1_000", json!(1000)),
            ("3.0", json!(3)),
            ("1e3", json!(1000)),
            ("2.5", json!(2.5)),
            (".5", json!(0.5)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("18446744073709551615", json!(u64::MAX)),
            ("1.2.3", json!("1.2.3")),
            ("10.0.0.1", json!("10.0.0.1")),
            ("2024-01-01", json!("2024-01-01")),
            ("10s", json!("10s")),
            ("1h", json!("1h")),
            ("089", json!(89)),
            ("-", json!("-")),
            (".", json!(".")),
            ("+.", json!("+.")),
            ("v1", json!("v1")),
            ("0x", json!("0x")),
            ("e3", json!("e3")),
            ("YES", json!(true)),
            ("yEs", json!("yEs")),
        ] {
            assert_eq!(resolve(text), Some(value), "{text:?}");
        }
        assert_eq!(resolve(".inf"), None);
    }
}
