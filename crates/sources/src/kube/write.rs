//! Requests that change something. One at a time, each with a deadline: whoever asks decides what to do when it fails.

use std::time::Duration;

use http::{Method, Request, header};
use kube::client::Body;
use pilotfish_config::{Kind, ObjectKey};
use serde_json::Value;

use super::link::Link;
use super::wire::{self, Fault};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It is there already, or is not as we think.
    Conflict(String),
    /// There is no such object.
    Absent(String),
    /// We may not.
    Forbidden(String),
    /// The server will never take it.
    Invalid(String),
    /// Not now; perhaps after this time.
    Busy(String, Option<Duration>),
    /// It is not known what became of it, or the server has trouble.
    Failed(String),
}

impl Refusal {
    /// What the server said.
    pub fn reason(&self) -> &str {
        match self {
            Self::Conflict(reason)
            | Self::Absent(reason)
            | Self::Forbidden(reason)
            | Self::Invalid(reason)
            | Self::Busy(reason, _)
            | Self::Failed(reason) => reason,
        }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Conflict(reason) => Self::Conflict(reason),
            Fault::Absent(reason) => Self::Absent(reason),
            Fault::Forbidden(reason) => Self::Forbidden(reason),
            Fault::Unsupported(reason) => Self::Invalid(reason),
            Fault::Busy(reason, wait) | Fault::Broken(reason, wait @ Some(_)) => {
                Self::Busy(reason, wait)
            }
            Fault::Expired(reason)
            | Fault::Behind(reason)
            | Fault::Unauthorized(reason)
            | Fault::Unreachable(reason)
            | Fault::Broken(reason, None)
            | Fault::Failed(reason) => Self::Failed(reason),
        }
    }
}

/// Where an object is. `api_version` is what it says of itself, or what we prefer.
pub fn path(key: &ObjectKey, api_version: &str) -> String {
    collection(key.kind, api_version, &key.namespace) + "/" + &key.name
}

/// Where all objects of a kind are that a namespace has.
pub fn collection(kind: Kind, api_version: &str, namespace: &str) -> String {
    let root = if api_version.contains('/') {
        "/apis"
    } else {
        "/api"
    };
    let place = if kind.cluster_scoped() {
        String::new()
    } else {
        format!("namespaces/{namespace}/")
    };
    format!("{root}/{api_version}/{place}{}", kind.plural())
}

impl Link {
    /// Reads one object.
    pub async fn read(&self, path: &str, patience: Duration) -> Result<Value, Refusal> {
        self.request(Method::GET, path, JSON, None, patience).await
    }

    /// Makes an object in the collection at `path`.
    pub async fn create(
        &self,
        path: &str,
        object: &Value,
        patience: Duration,
    ) -> Result<Value, Refusal> {
        self.request(Method::POST, path, JSON, Some(object), patience)
            .await
    }

    /// Replaces an object, if it is of the version that `object` names.
    pub async fn replace(
        &self,
        path: &str,
        object: &Value,
        patience: Duration,
    ) -> Result<Value, Refusal> {
        self.request(Method::PUT, path, JSON, Some(object), patience)
            .await
    }

    /// Server-side apply: sets the fields of `object` and takes away those that `manager` had set before and are not in it.
    pub async fn apply(
        &self,
        path: &str,
        manager: &str,
        object: &Value,
        patience: Duration,
    ) -> Result<Value, Refusal> {
        let path = format!("{path}?fieldManager={manager}&force=true");
        self.request(Method::PATCH, &path, APPLY, Some(object), patience)
            .await
    }

    /// Lays `change` over an object, as RFC 7386 has it; if it is of the version that `change` names, if it names any.
    pub async fn merge(
        &self,
        path: &str,
        manager: &str,
        change: &Value,
        patience: Duration,
    ) -> Result<Value, Refusal> {
        let path = format!("{path}?fieldManager={manager}");
        self.request(Method::PATCH, &path, MERGE, Some(change), patience)
            .await
    }

    /// Removes an object; `options` say under which conditions.
    pub async fn delete(
        &self,
        path: &str,
        options: &Value,
        patience: Duration,
    ) -> Result<Value, Refusal> {
        self.request(Method::DELETE, path, JSON, Some(options), patience)
            .await
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<Value, Refusal> {
        let (client, used) = self.client();
        let bytes = body.map(|object| object.to_string().into_bytes());
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::ACCEPT, JSON)
            .header(header::CONTENT_TYPE, content)
            .body(Body::from(bytes.unwrap_or_default()))
            .map_err(|error| Refusal::Invalid(format!("not a request: {error}")))?;
        let answer = match wire::perform(&client, request, patience).await {
            Ok(answer) => answer,
            Err(fault) => {
                if matches!(fault, Fault::Unauthorized(_) | Fault::Unreachable(_)) {
                    self.renew(used).await;
                }
                return Err(fault.into());
            }
        };
        serde_json::from_slice(&answer)
            .map_err(|error| Refusal::Failed(format!("unreadable answer: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_where_they_say() {
        let entry = ObjectKey::new(Kind::ServiceEntry, "shop", "out");
        assert_eq!(
            path(&entry, "networking.istio.io/v1beta1"),
            "/apis/networking.istio.io/v1beta1/namespaces/shop/serviceentries/out"
        );
        let namespace = ObjectKey::new(Kind::Namespace, "", "shop");
        assert_eq!(path(&namespace, "v1"), "/api/v1/namespaces/shop");
    }
}
