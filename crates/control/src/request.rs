//! `pilotfish request`: one HTTP request to a running server, without an HTTP client library.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cli::RequestArgs;

const TIMEOUT: Duration = Duration::from_mins(1);

/// Sends the request and returns the body of a good answer. A bad one is an error that has the body in it.
pub(crate) fn send(args: &RequestArgs) -> Result<Vec<u8>> {
    let address = match args.monitoring_addr.strip_prefix(':') {
        Some(port) => format!("127.0.0.1:{port}"),
        None => args.monitoring_addr.clone(),
    };
    let mut stream = connect(&address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(request(args, &address)?.as_bytes())?;
    let mut answer = Vec::new();
    stream
        .read_to_end(&mut answer)
        .with_context(|| format!("{address} did not finish its answer"))?;
    let (status, body) =
        split(&answer).with_context(|| format!("{address} does not speak HTTP"))?;
    if status >= 400 {
        let text = String::from_utf8_lossy(body);
        bail!(
            "{} {} answered {status}: {}",
            args.method.to_uppercase(),
            args.path,
            text.trim_end()
        );
    }
    Ok(body.to_vec())
}

fn connect(address: &str) -> Result<TcpStream> {
    let hint = "is the server running? Name its monitoring port with --monitoring-addr host:port";
    let found = address
        .to_socket_addrs()
        .with_context(|| format!("{address:?} is no address; {hint}"))?;
    let mut failure = None;
    for target in found {
        match TcpStream::connect_timeout(&target, TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) => Err(error).with_context(|| format!("cannot reach {address}; {hint}")),
        None => bail!("{address:?} has no address; {hint}"),
    }
}

/// HTTP/1.0, so that the answer is neither chunked nor kept open.
fn request(args: &RequestArgs, host: &str) -> Result<String> {
    let method = args.method.to_uppercase();
    if method.is_empty() || !method.bytes().all(|b| b.is_ascii_alphabetic()) {
        bail!("{:?} is no HTTP method; use GET, PUT or POST", args.method);
    }
    let path = args.path.strip_prefix('/').unwrap_or(&args.path);
    if path.bytes().any(|b| b <= b' ' || b == 0x7f) {
        bail!(
            "the path {:?} has a space or a control character; write %20 for a space",
            args.path
        );
    }
    let body = args.body.as_deref().unwrap_or_default();
    let kind = if body.is_empty() {
        ""
    } else {
        "Content-Type: application/json\r\n"
    };
    Ok(format!(
        "{method} /{path} HTTP/1.0\r\nHost: {host}\r\nAccept: application/json, text/plain, */*\r\n{kind}Content-Length: {}\r\n\r\n{body}",
        body.len()
    ))
}

fn split(answer: &[u8]) -> Option<(u16, &[u8])> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head
        .strip_prefix("HTTP/1.")?
        .split(' ')
        .nth(1)?
        .parse()
        .ok()?;
    Some((status, &answer[end + 4..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(method: &str, path: &str, body: Option<&str>) -> RequestArgs {
        RequestArgs {
            method: method.into(),
            path: path.into(),
            body: body.map(str::to_owned),
            monitoring_addr: ":1".into(),
        }
    }

    #[test]
    fn requests_are_well_formed() {
        let text = request(&args("get", "debug/syncz?a=b", None), "h:1").unwrap();
        assert!(
            text.starts_with("GET /debug/syncz?a=b HTTP/1.0\r\nHost: h:1\r\n"),
            "{text}"
        );
        assert!(text.ends_with("Content-Length: 0\r\n\r\n"), "{text}");
        assert!(
            request(&args("PUT", "/x", Some("{}")), "h")
                .unwrap()
                .ends_with("Content-Length: 2\r\n\r\n{}")
        );
        assert!(request(&args("GET", "/x HTTP/1.1\r\nX: y", None), "h").is_err());
        assert!(request(&args("GE T", "/x", None), "h").is_err());
    }

    #[test]
    fn answers_are_taken_apart() {
        assert_eq!(
            split(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\nbody"),
            Some((200, &b"body"[..]))
        );
        assert_eq!(split(b"SSH-2.0"), None);
    }

    #[test]
    fn nobody_there_says_what_to_do() {
        let error = format!("{:#}", send(&args("GET", "/", None)).unwrap_err());
        assert!(
            error.contains("127.0.0.1:1") && error.contains("--monitoring-addr"),
            "{error}"
        );
    }
}
