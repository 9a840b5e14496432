//! Health reports: requests by which an agent says how the workload beside its proxy is. They watch nothing and have no answer.

use pilotfish_protos::google::rpc::Status;

const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";

/// How a workload is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// What is wrong, in the agent's words; nothing if all is well.
    pub problem: Option<String>,
}

impl Health {
    /// What a request reports, if its type is the one that reports.
    pub(crate) fn of(type_url: &str, error: Option<&Status>) -> Option<Self> {
        (type_url == HEALTH).then(|| Self {
            problem: error.map(|error| error.message.clone()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_problem() {
        let error = Status {
            message: "no answer".to_owned(),
            ..Status::default()
        };
        let said = |problem: Option<&str>| {
            Some(Health {
                problem: problem.map(str::to_owned),
            })
        };
        assert_eq!(Health::of(HEALTH, None), said(None));
        assert_eq!(Health::of(HEALTH, Some(&error)), said(Some("no answer")));
        assert_eq!(
            Health::of("type.googleapis.com/istio.v1.Health", None),
            None
        );
    }
}
