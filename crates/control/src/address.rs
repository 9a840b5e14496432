//! Addresses to listen on, as istiod writes them.

use std::fmt;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, anyhow, bail};
use tokio::net::{TcpListener, lookup_host};

/// `host:port`, or `:port` for all addresses of the host, with the flag it came from for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    host: String,
    port: u16,
    flag: &'static str,
}

impl Address {
    /// Reads an address; `None` if it is empty, which closes the port.
    pub(crate) fn parse(text: &str, flag: &'static str) -> Result<Option<Self>> {
        if text.is_empty() {
            return Ok(None);
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            bail!(
                "{flag} {text:?} is no address: write host:port, :port for all addresses, or '' to close the port"
            );
        };
        let port = port
            .parse()
            .map_err(|_| anyhow!("{flag} {text:?}: {port:?} is no port number"))?;
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        Ok(Some(Self {
            host: host.to_owned(),
            port,
            flag,
        }))
    }

    /// Whether only this host can reach it.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self
                .host
                .parse::<std::net::IpAddr>()
                .is_ok_and(|ip| ip.is_loopback())
    }

    /// Listens there. Without a host: on IPv6 and IPv4, or on IPv4 alone where the machine has no IPv6.
    pub(crate) async fn listen(&self, purpose: &str) -> Result<TcpListener> {
        let addresses: Vec<SocketAddr> = if self.host.is_empty() {
            vec![
                (Ipv6Addr::UNSPECIFIED, self.port).into(),
                (Ipv4Addr::UNSPECIFIED, self.port).into(),
            ]
        } else {
            let found = lookup_host((self.host.as_str(), self.port)).await;
            found
                .with_context(|| {
                    format!("{} {self}: cannot find the host {:?}", self.flag, self.host)
                })?
                .collect()
        };
        let mut failure = None;
        for address in addresses {
            match pilotfish_xds::listen(address) {
                Ok(listener) => return Ok(listener),
                Err(error) => {
                    let in_use = error.kind() == ErrorKind::AddrInUse;
                    failure = Some(error);
                    if in_use {
                        break;
                    }
                }
            }
        }
        Err(match failure {
            Some(error) if error.kind() == ErrorKind::AddrInUse => anyhow!(
                "{purpose} cannot listen on {self}: another process has the port; stop it, or choose another address \
                 with {}",
                self.flag
            ),
            Some(error) => anyhow!(
                "{purpose} cannot listen on {self}: {error}; choose another address with {}",
                self.flag
            ),
            None => anyhow!("{purpose} cannot listen on {self}: the host has no address"),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<String> {
        Address::parse(text, "--x")
            .unwrap()
            .map(|address| address.to_string())
    }

    #[test]
    fn go_spellings_are_read() {
        assert_eq!(parse(""), None);
        assert_eq!(parse(":15010").as_deref(), Some(":15010"));
        assert_eq!(parse("localhost:1").as_deref(), Some("localhost:1"));
        assert_eq!(parse("[::1]:1").as_deref(), Some("[::1]:1"));
        for bad in ["15010", "host", "host:", "host:65536", "host:http"] {
            let error = Address::parse(bad, "--grpc-addr").unwrap_err().to_string();
            assert!(error.starts_with("--grpc-addr"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_port_in_use_names_the_flag() {
        let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let text = first.local_addr().unwrap().to_string();
        let address = Address::parse(&text, "--grpc-addr").unwrap().unwrap();
        let error = address.listen("xDS").await.unwrap_err().to_string();
        assert!(
            error.contains(&text) && error.contains("--grpc-addr"),
            "{error}"
        );
    }
}
