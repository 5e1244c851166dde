//! Whether names of pods can be learnt here: the Kubernetes API and what it allows, else what names come from instead.

use std::time::Duration;

use super::checks::{Check, PATIENCE, State, check};
use crate::enrich::config::{Config, Enabled, Peers};
use crate::enrich::kubernetes::Settings;
use crate::enrich::kubernetes::api::{Api, ApiError, connect};
use crate::enrich::kubernetes::watch::Watch;

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The check, where names of pods are wanted.
pub(super) fn names(config: &Config, env: Env<'_>) -> Option<Check> {
    let wanted = match config.enabled {
        Enabled::Yes => true,
        Enabled::No => false,
        Enabled::Auto => env("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty()),
    };
    if !wanted {
        return None;
    }
    let settings = Settings::new(config, env);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Some(check("Kubernetes", State::Warn, error.to_string())),
    };
    Some(runtime.block_on(async {
        match connect().await {
            Ok((api, account)) => of_api(&api, &settings, || Api::of_kubelet(account, &settings.kubelet)).await,
            Err(what) => degraded(&format!("there is no way to the API: {what}"), Err("there is no service account to show".into())).await,
        }
    }))
}

/// What the API allows.
async fn of_api(api: &Api, settings: &Settings, kubelet: impl FnOnce() -> Result<Api, String>) -> Check {
    let Some(watch) = Watch::new(settings.keep.node.as_deref(), settings.peers) else {
        let why = "the name of this node is not known (NODE_NAME, kubernetes.node_name), so that its pods cannot be watched";
        return degraded(why, kubelet()).await;
    };
    let [list, watched] = watch.trials();
    let listed = in_time(api.get::<serde::de::IgnoredAny>(&list)).await.map(drop);
    let opened = match listed {
        Ok(()) => in_time(api.watch(&watched)).await.map(drop),
        Err(error) => Err(error),
    };
    match opened {
        Ok(()) => {}
        Err(ApiError::Denied(what)) => {
            return degraded(&format!("the API denies the list or the watch of pods: {what}"), kubelet()).await;
        }
        Err(error) => return degraded(&format!("the API does not answer: {error}"), kubelet()).await,
    }
    let mut missing = Vec::new();
    // What is not there is answered by 404, what is not allowed by 403.
    for (path, right, without, wanted) in [
        ("/api/v1/services?limit=1", "list services", "services stay unnamed", settings.peers != Peers::Off),
        ("/apis/apps/v1/namespaces/default/replicasets/none", "get replicasets", "owners that names do not tell stay unknown", true),
        ("/apis/batch/v1/namespaces/default/jobs/none", "get jobs", "CronJobs that names do not tell stay unknown", true),
    ] {
        if wanted && matches!(in_time(api.get::<serde::de::IgnoredAny>(path)).await, Err(ApiError::Denied(_))) {
            missing.push(format!("may not {right}: {without}"));
        }
    }
    let node = settings.keep.node.as_deref().map_or("the whole cluster".to_owned(), |node| format!("node {node}"));
    if missing.is_empty() {
        check("Kubernetes", State::Ok, format!("names come from the API: pods of {node} can be watched"))
    } else {
        check("Kubernetes", State::Warn, format!("pods of {node} can be watched, but the service account {}", missing.join("; ")))
    }
}

/// What names come from without the API.
async fn degraded(why: &str, kubelet: Result<Api, String>) -> Check {
    let answered = match kubelet {
        Ok(kubelet) => in_time(kubelet.get::<serde::de::IgnoredAny>("/pods")).await.map(drop).map_err(|error| error.to_string()),
        Err(what) => Err(what),
    };
    let then = match answered {
        Ok(()) => "names come from the kubelet: far ends on other nodes have none".to_owned(),
        Err(what) => format!("there are no names, only the ids of pods in cgroups (the kubelet: {what})"),
    };
    check("Kubernetes", State::Warn, format!("{why}; {then}"))
}

async fn in_time<T>(answer: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    const WITHIN: Duration = PATIENCE;
    tokio::time::timeout(WITHIN, answer)
        .await
        .unwrap_or_else(|_| Err(ApiError::Unreachable(format!("no answer within {} s", WITHIN.as_secs()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enrich::config::Kubelet;
    use crate::testing;

    fn server(of: impl Fn(&str) -> (u16, &'static str) + Send + 'static) -> Api {
        let url = testing::server(move |path| {
            let (status, body) = of(path);
            (status, body.to_owned())
        });
        Api::new(kube::Config::new(url.parse().unwrap())).unwrap()
    }

    fn found(api: impl Fn(&str) -> (u16, &'static str) + Send + 'static, node: Option<&str>, kubelet: Option<u16>) -> (State, String) {
        let config = Config { node_name: node.map(str::to_owned), kubelet: Kubelet::default(), ..Config::default() };
        let settings = Settings::new(&config, &|_: &str| None);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let checked = runtime.block_on(async {
            let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
            let kubelet = kubelet.map_or(Err("not known".to_owned()), |status| Ok(server(move |_| (status, "{}"))));
            of_api(&server(api), &settings, || kubelet).await
        });
        assert_eq!((checked.name, checked.next.is_some()), ("Kubernetes", checked.state != State::Ok));
        (checked.state, checked.found)
    }

    const DENIED: (u16, &str) = (403, r#"{"message":"pods is forbidden","code":403}"#);

    fn usual(path: &str) -> (u16, &'static str) {
        if path.contains("/none") { (404, "{}") } else { (200, "{}") }
    }

    #[test]
    fn what_is_allowed_and_what_is_not() {
        assert_eq!(found(usual, Some("n1"), None), (State::Ok, "names come from the API: pods of node n1 can be watched".into()));
        let without_services = |path: &str| if path.starts_with("/api/v1/services") { DENIED } else { usual(path) };
        let want = "pods of node n1 can be watched, but the service account may not list services: services stay unnamed";
        assert_eq!(found(without_services, Some("n1"), None), (State::Warn, want.into()));
        let without_watch = |path: &str| if path.contains("watch=true") { DENIED } else { usual(path) };
        let want = "the API denies the list or the watch of pods: 403: pods is forbidden; \
                    names come from the kubelet: far ends on other nodes have none";
        assert_eq!(found(without_watch, Some("n1"), Some(200)), (State::Warn, want.into()));
    }

    #[test]
    fn without_the_api_the_next_best_is_named() {
        let (state, text) = found(|_| (503, "{}"), Some("n1"), Some(401));
        assert_eq!(state, State::Warn);
        assert!(text.starts_with("the API does not answer: 503 "), "{text}");
        assert!(text.contains("only the ids of pods in cgroups (the kubelet: 401 "), "{text}");
        let (_, text) = found(usual, None, None);
        assert!(text.starts_with("the name of this node is not known") && text.ends_with("(the kubelet: not known)"), "{text}");
    }

    #[test]
    fn nobody_asks_where_nobody_wants_names() {
        assert_eq!(names(&Config::default(), &|_: &str| None), None);
        let in_a_pod = |name: &str| (name == "KUBERNETES_SERVICE_HOST").then(|| "10.96.0.1".to_owned());
        assert_eq!(names(&Config { enabled: Enabled::No, ..Config::default() }, &in_a_pod), None);
    }
}
