//! Application protocols.

/// What a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/2 in plain text.
    Http2,
    /// gRPC.
    Grpc,
    /// gRPC-Web.
    GrpcWeb,
    /// HTTP in TLS that we do not terminate.
    Https,
    /// TLS that we do not terminate.
    Tls,
    /// Bytes.
    Tcp,
    /// MongoDB.
    Mongo,
    /// Redis.
    Redis,
    /// MySQL.
    MySql,
    /// Datagrams; not proxied.
    Udp,
    /// HTTP proxy (CONNECT and absolute URLs).
    HttpProxy,
    /// HBONE.
    Hbone,
    /// Not said: detected on each connection.
    Auto,
}

/// Ports whose protocols speak server first, so that detection would stall them.
const NEVER_DETECTED: [u16; 4] = [25, 53, 3306, 27017];

impl Protocol {
    /// From its name in any case; unknown names leave it to detection.
    pub fn parse(name: &str) -> Self {
        match name.to_ascii_lowercase().as_str() {
            "http" => Self::Http,
            "http2" => Self::Http2,
            "grpc" => Self::Grpc,
            "grpc-web" => Self::GrpcWeb,
            "https" => Self::Https,
            "tls" => Self::Tls,
            "tcp" => Self::Tcp,
            "mongo" => Self::Mongo,
            "redis" => Self::Redis,
            "mysql" => Self::MySql,
            "udp" => Self::Udp,
            "http_proxy" => Self::HttpProxy,
            _ => Self::Auto,
        }
    }

    /// Of a Kubernetes service port: what it says it speaks, else the part of its name before a dash.
    pub fn of_port(number: u16, name: &str, app_protocol: Option<&str>) -> Self {
        match app_protocol {
            Some("kubernetes.io/h2c") => return Self::Http2,
            Some("kubernetes.io/ws") => return Self::Http,
            Some("kubernetes.io/wss") => return Self::Https,
            _ => {}
        }
        let word = app_protocol.unwrap_or(name);
        if word
            .get(..8)
            .is_some_and(|w| w.eq_ignore_ascii_case("grpc-web"))
        {
            return Self::GrpcWeb;
        }
        match Self::parse(word.split('-').next().unwrap_or_default()) {
            Self::Auto if NEVER_DETECTED.contains(&number) => Self::Tcp,
            protocol => protocol,
        }
    }

    /// HTTP that we can route.
    pub fn is_http(self) -> bool {
        matches!(
            self,
            Self::Http | Self::Http2 | Self::Grpc | Self::GrpcWeb | Self::HttpProxy | Self::Hbone
        )
    }

    /// HTTP/2 framing.
    pub fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc | Self::GrpcWeb)
    }

    /// gRPC of either kind.
    pub fn is_grpc(self) -> bool {
        matches!(self, Self::Grpc | Self::GrpcWeb)
    }

    /// Carried as bytes over TCP.
    pub fn is_tcp(self) -> bool {
        matches!(
            self,
            Self::Tcp | Self::Https | Self::Tls | Self::Mongo | Self::Redis | Self::MySql
        )
    }

    /// TLS that we do not terminate.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    /// What is inside once TLS has been terminated.
    #[must_use]
    pub fn inside_tls(self) -> Self {
        match self {
            Self::Https => Self::Http,
            Self::Tls => Self::Tcp,
            other => other,
        }
    }

    /// Detected on each connection.
    pub fn is_auto(self) -> bool {
        self == Self::Auto
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_says_what_it_speaks() {
        let of = Protocol::of_port;
        assert_eq!(of(80, "http-web", None), Protocol::Http);
        assert_eq!(of(80, "http", Some("grpc")), Protocol::Grpc);
        assert_eq!(of(80, "grpc-web-x", None), Protocol::GrpcWeb);
        assert_eq!(of(80, "x", Some("kubernetes.io/h2c")), Protocol::Http2);
        assert_eq!(of(3306, "db", None), Protocol::Tcp);
        assert_eq!(of(3307, "db", None), Protocol::Auto);
        assert_eq!(of(3306, "http", None), Protocol::Http);
    }
}
