//! HTTP/1.1 messages, as much as our own client and backend need.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};

/// Bounds what a peer can make us hold.
const MAX_LINE: u64 = 64 * 1024;
const MAX_BODY: usize = 64 * 1024 * 1024;

/// A first line, headers with lower-case names, and a body.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// `GET / HTTP/1.1` or `HTTP/1.1 200 OK`.
    pub first: String,
    /// A header that occurs twice keeps both values, joined by a comma.
    pub headers: BTreeMap<String, String>,
    /// The body, with any chunking undone.
    pub body: Vec<u8>,
}

impl Message {
    /// Reads a message; `None` if the peer closed the connection before its first byte.
    pub fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let Some(mut message) = Self::read_head(reader)? else {
            return Ok(None);
        };
        message.body = message.read_body(reader)?;
        Ok(Some(message))
    }

    /// Reads the first line and the headers, and leaves the body unread.
    pub fn read_head(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let Some(first) = line(reader)? else {
            return Ok(None);
        };
        let mut headers = BTreeMap::<String, String>::new();
        loop {
            let text = line(reader)?.ok_or_else(closed)?;
            if text.is_empty() {
                break;
            }
            let (name, value) = text
                .split_once(':')
                .ok_or_else(|| invalid("a header without a colon"))?;
            headers
                .entry(name.trim().to_ascii_lowercase())
                .and_modify(|all| {
                    all.push(',');
                    all.push_str(value.trim());
                })
                .or_insert_with(|| value.trim().to_owned());
        }
        Ok(Some(Self {
            first,
            headers,
            body: Vec::new(),
        }))
    }

    /// The status code of a response.
    pub fn status(&self) -> io::Result<u16> {
        let code = self.first.split(' ').nth(1);
        code.and_then(|code| code.parse().ok())
            .ok_or_else(|| invalid("no status"))
    }

    /// Whether the body comes in chunks, and may go on for ever.
    pub fn is_chunked(&self) -> bool {
        self.header("transfer-encoding")
            .is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
    }

    /// Reads the body that a head announces.
    pub fn read_body(&self, reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        if self.is_chunked() {
            while read_chunk(reader, &mut body)? > 0 {}
        } else if let Some(length) = self.header("content-length") {
            append(
                reader,
                &mut body,
                length.parse().map_err(|_| invalid("content-length"))?,
            )?;
        }
        Ok(body)
    }

    /// Writes the message; the length of the body is added.
    pub fn write(&self, writer: &mut impl Write) -> io::Result<()> {
        // One write: a request in two segments would wait for Nagle's algorithm.
        let mut bytes = format!("{}\r\n", self.first).into_bytes();
        for (name, value) in &self.headers {
            write!(bytes, "{name}: {value}\r\n")?;
        }
        write!(bytes, "content-length: {}\r\n\r\n", self.body.len())?;
        bytes.extend_from_slice(&self.body);
        writer.write_all(&bytes)?;
        writer.flush()
    }

    /// A header by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Whether the peer closes the connection after this message.
    pub fn closes(&self) -> bool {
        self.header("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// Appends one chunk of a chunked body; the size of the last one is 0.
pub fn read_chunk(reader: &mut impl BufRead, body: &mut Vec<u8>) -> io::Result<usize> {
    let size = line(reader)?.ok_or_else(closed)?;
    let size = size.split(';').next().unwrap_or_default().trim();
    let size = usize::from_str_radix(size, 16).map_err(|_| invalid("size of a chunk"))?;
    append(reader, body, size)?;
    line(reader)?.ok_or_else(closed)?;
    Ok(size)
}

fn line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut text = String::new();
    if reader.take(MAX_LINE).read_line(&mut text)? == 0 {
        return Ok(None);
    }
    if text.pop() != Some('\n') {
        return Err(closed());
    }
    if text.ends_with('\r') {
        text.pop();
    }
    Ok(Some(text))
}

fn append(reader: &mut impl Read, body: &mut Vec<u8>, size: usize) -> io::Result<()> {
    if body.len() + size > MAX_BODY {
        return Err(invalid("body too large"));
    }
    let start = body.len();
    body.resize(start + size, 0);
    reader.read_exact(&mut body[start..])
}

fn closed() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "connection closed inside a message",
    )
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> io::Result<Option<Message>> {
        Message::read(&mut text.as_bytes())
    }

    #[test]
    fn a_length_or_chunks_bound_the_body() {
        let plain = read("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcREST")
            .unwrap()
            .unwrap();
        assert_eq!(plain.body, b"abc");
        let chunked = read(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n",
        );
        assert_eq!(chunked.unwrap().unwrap().body, b"abc");
    }

    #[test]
    fn a_connection_closed_between_messages_is_no_error_and_inside_one_is() {
        assert!(read("").unwrap().is_none());
        assert!(read("HTTP/1.1 200 OK\r\ncontent-").is_err());
        assert!(read("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabc").is_err());
    }

    #[test]
    fn what_is_written_can_be_read() {
        let message = Message {
            first: "GET / HTTP/1.1".to_owned(),
            headers: [("host".to_owned(), "a".to_owned())].into(),
            body: b"x".to_vec(),
        };
        let mut bytes = Vec::new();
        message.write(&mut bytes).unwrap();
        let back = Message::read(&mut bytes.as_slice()).unwrap().unwrap();
        assert_eq!((back.first, back.body), (message.first, message.body));
        assert_eq!(back.headers["host"], "a");
    }
}
