//! Whether a text is a regular expression that Envoy (RE2) accepts.
//!
//! Reads the syntax only, without compiling: the cost is linear in a text of at most [`MAX_LENGTH`].

use std::iter::Peekable;
use std::str::Chars;

/// The longest expression that is passed on.
pub(super) const MAX_LENGTH: usize = 1024;
const MAX_REPEAT: u32 = 1000;

/// The reason why `text` is no regular expression.
pub(super) fn check(text: &str) -> Result<(), String> {
    if text.len() > MAX_LENGTH {
        return Err(format!(
            "regular expression is longer than {MAX_LENGTH} characters"
        ));
    }
    let mut reader = Reader {
        rest: text.chars().peekable(),
    };
    reader
        .expression()
        .map_err(|reason| format!("invalid regular expression: {reason}"))
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
}

/// What the last thing read was, which decides whether it can be repeated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Nothing,
    Operand,
    Repeat,
}

impl Reader<'_> {
    fn expression(&mut self) -> Result<(), String> {
        let mut depth = 0_usize;
        let mut last = Last::Nothing;
        while let Some(c) = self.rest.next() {
            last = match c {
                '(' => {
                    depth += 1;
                    if self.group()? {
                        // Flags alone, `(?i)`: the group is closed already.
                        depth -= 1;
                        last
                    } else {
                        Last::Nothing
                    }
                }
                ')' => {
                    depth = depth.checked_sub(1).ok_or("unexpected )")?;
                    Last::Operand
                }
                '[' => {
                    self.class()?;
                    Last::Operand
                }
                '|' => Last::Nothing,
                '*' | '+' | '?' => self.repeat(c, last)?,
                '{' => match self.bounds() {
                    Some(bounds) => {
                        bounds?;
                        self.repeat('{', last)?
                    }
                    None => Last::Operand,
                },
                '\\' => {
                    self.escape(false)?;
                    Last::Operand
                }
                _ => Last::Operand,
            };
        }
        if depth > 0 {
            Err("missing )".to_owned())
        } else {
            Ok(())
        }
    }

    fn repeat(&mut self, operator: char, last: Last) -> Result<Last, String> {
        match last {
            Last::Nothing => Err(format!("nothing to repeat before {operator}")),
            Last::Repeat => Err(format!("repetition {operator} of a repetition")),
            Last::Operand => {
                self.rest.next_if_eq(&'?');
                Ok(Last::Repeat)
            }
        }
    }

    /// What follows `(`; true if it was only flags.
    fn group(&mut self) -> Result<bool, String> {
        if self.rest.next_if_eq(&'?').is_none() {
            return Ok(false);
        }
        if self.rest.next_if_eq(&'P').is_some() && self.rest.peek() != Some(&'<') {
            return Err("unsupported group (?P".to_owned());
        }
        if self.rest.next_if_eq(&'<').is_some() {
            let mut name = String::new();
            while let Some(c) = self.rest.next_if(|c| *c != '>') {
                name.push(c);
            }
            let valid =
                !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if self.rest.next().is_none() || !valid {
                return Err("unsupported group (?<: look-behind or a bad name".to_owned());
            }
            return Ok(false);
        }
        loop {
            match self.rest.next() {
                Some(':') => return Ok(false),
                Some(')') => return Ok(true),
                Some('i' | 'm' | 's' | 'U' | '-') => {}
                Some(c) => return Err(format!("unsupported group (?{c}")),
                None => return Err("missing )".to_owned()),
            }
        }
    }

    /// `{n}`, `{n,}` or `{n,m}` after the brace; anything else leaves the brace to be a character.
    fn bounds(&mut self) -> Option<Result<(), String>> {
        let mut ahead = self.rest.clone();
        let number = |ahead: &mut Peekable<Chars<'_>>| {
            let mut digits = String::new();
            while let Some(c) = ahead.next_if(char::is_ascii_digit) {
                digits.push(c);
            }
            digits
        };
        let low = number(&mut ahead);
        if low.is_empty() {
            return None;
        }
        let high = if ahead.next_if_eq(&',').is_some() {
            number(&mut ahead)
        } else {
            low.clone()
        };
        ahead.next_if_eq(&'}')?;
        self.rest = ahead;
        let low: u32 = low.parse().unwrap_or(u32::MAX);
        let high: u32 = if high.is_empty() {
            low
        } else {
            high.parse().unwrap_or(u32::MAX)
        };
        if low > MAX_REPEAT || high > MAX_REPEAT || low > high {
            return Some(Err("invalid repeat count".to_owned()));
        }
        Some(Ok(()))
    }

    fn class(&mut self) -> Result<(), String> {
        self.rest.next_if_eq(&'^');
        let mut first = true;
        let mut from: Option<char> = None;
        loop {
            let c = self.rest.next().ok_or("missing ]")?;
            let single = match c {
                ']' if !first => return Ok(()),
                '[' if self.rest.peek() == Some(&':') => {
                    self.named_class()?;
                    None
                }
                '\\' => self.escape(true)?,
                '-' if !first
                    && from.is_some()
                    && self.rest.peek().is_some_and(|next| *next != ']') =>
                {
                    let low = from.take().unwrap_or_default();
                    let high = match self.rest.next() {
                        Some('\\') => self.escape(true)?.ok_or("invalid range in [")?,
                        Some(high) => high,
                        None => return Err("missing ]".to_owned()),
                    };
                    if high < low {
                        return Err(format!("invalid range {low}-{high}"));
                    }
                    None
                }
                c => Some(c),
            };
            first = false;
            from = single;
        }
    }

    /// `[:alpha:]`, if it is one; otherwise the bracket is a character.
    fn named_class(&mut self) -> Result<(), String> {
        let text: String = self
            .rest
            .clone()
            .skip(1)
            .take_while(|c| c.is_ascii_alphabetic() || *c == '^')
            .collect();
        let mut after = self.rest.clone().skip(1 + text.chars().count());
        if (after.next(), after.next()) != (Some(':'), Some(']')) {
            return Ok(());
        }
        let name = text.strip_prefix('^').unwrap_or(&text);
        let known = [
            "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print",
            "punct", "space", "upper", "word", "xdigit",
        ];
        if !known.contains(&name) {
            return Err(format!("unknown class [:{name}:]"));
        }
        self.rest.nth(text.chars().count() + 2);
        Ok(())
    }

    /// What follows a backslash; the character, if it stands for one.
    fn escape(&mut self, in_class: bool) -> Result<Option<char>, String> {
        let c = self.rest.next().ok_or("backslash at the end")?;
        match c {
            'a' | 'f' | 'n' | 'r' | 't' | 'v' | 'd' | 'D' | 's' | 'S' | 'w' | 'W' | '0' => Ok(None),
            'A' | 'b' | 'B' | 'C' | 'E' | 'z' if !in_class => Ok(None),
            'Q' if !in_class => {
                let mut previous = ' ';
                for c in self.rest.by_ref() {
                    if previous == '\\' && c == 'E' {
                        break;
                    }
                    previous = c;
                }
                Ok(None)
            }
            'p' | 'P' => {
                if self.rest.next() == Some('{') && !self.rest.any(|c| c == '}') {
                    return Err("missing } after \\p{".to_owned());
                }
                Ok(None)
            }
            'x' => {
                let valid = if self.rest.next_if_eq(&'{').is_some() {
                    let mut digits = 0;
                    while self.rest.next_if(char::is_ascii_hexdigit).is_some() {
                        digits += 1;
                    }
                    self.rest.next() == Some('}') && (1..=8).contains(&digits)
                } else {
                    self.rest.next().is_some_and(|c| c.is_ascii_hexdigit())
                        && self.rest.next().is_some_and(|c| c.is_ascii_hexdigit())
                };
                if valid {
                    Ok(None)
                } else {
                    Err("invalid \\x".to_owned())
                }
            }
            '1'..='7'
                if self
                    .rest
                    .peek()
                    .is_some_and(|next| ('0'..='7').contains(next)) =>
            {
                Ok(None)
            }
            '1'..='9' => Err(format!("back-reference \\{c} is not supported")),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => Ok(Some(c)),
            c => Err(format!("unknown escape \\{c}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn what_re2_accepts() {
        for good in [
            "",
            ".*",
            "a|b",
            "(a|b)+?",
            "^/api/v[0-9]+/.*$",
            "[]a]",
            "[^]a-z_-]",
            "[[:alpha:]_]",
            r"\d{1,3}\.x",
            "a{",
            "a{,3}",
            r"\Q(((\E",
            "(?i)foo",
            "(?i:foo)",
            "(?P<name>x)",
            "(?<name>x)",
            r"\pL\p{Greek}",
            r"\x{10FFFF}\x41",
            r"\/\-\_",
            "[[]",
            r"1\.(2[0-9]|3[0-1])\..*",
            "()",
            "a??",
            r"[\w-]+",
            "(|a)",
            "x{2,}",
            r"[a\-z]",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn what_re2_refuses() {
        for bad in [
            "*",
            "a**",
            "(",
            ")",
            "[",
            "[a",
            "a{1001}",
            "a{3,2}",
            "(?=a)",
            "(?!a)",
            "(?<=a)",
            "(?<!a)",
            r"\1",
            r"\",
            "[z-a]",
            "(?P=x)",
            r"\y",
            "|*",
            "(*a)",
            "[[:nope:]]",
            r"\x{}",
            "+",
            "(?i",
            r"\p{Greek",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
        assert!(check(&"a".repeat(1025)).is_err());
    }
}
