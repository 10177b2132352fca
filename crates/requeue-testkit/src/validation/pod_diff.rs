//! Computes the difference between two pods as the API server prints it: a unified diff of the
//! Go structs.

use std::fmt::Write;
use std::ops::Range;

use serde_json::{Value, json};

/// The number of unchanged lines that are shown before and after each change.
const CONTEXT: usize = 3;

/// A field of the struct `PodSpec` in Go: its name in Go, its name in JSON, and the text for a
/// field that is not set.
type Field = (&'static str, &'static str, &'static str);

const SPEC: [Field; 43] = [
    ("Volumes", "volumes", "null"),
    ("InitContainers", "initContainers", "null"),
    ("Containers", "containers", "null"),
    ("EphemeralContainers", "ephemeralContainers", "null"),
    ("RestartPolicy", "restartPolicy", "\"\""),
    ("TerminationGracePeriodSeconds", "terminationGracePeriodSeconds", "null"),
    ("ActiveDeadlineSeconds", "activeDeadlineSeconds", "null"),
    ("DNSPolicy", "dnsPolicy", "\"\""),
    ("NodeSelector", "nodeSelector", "null"),
    ("ServiceAccountName", "serviceAccountName", "\"\""),
    ("DeprecatedServiceAccount", "serviceAccount", "\"\""),
    ("AutomountServiceAccountToken", "automountServiceAccountToken", "null"),
    ("NodeName", "nodeName", "\"\""),
    ("HostNetwork", "hostNetwork", "false"),
    ("HostPID", "hostPID", "false"),
    ("HostIPC", "hostIPC", "false"),
    ("ShareProcessNamespace", "shareProcessNamespace", "null"),
    ("SecurityContext", "securityContext", "null"),
    ("ImagePullSecrets", "imagePullSecrets", "null"),
    ("Hostname", "hostname", "\"\""),
    ("Subdomain", "subdomain", "\"\""),
    ("Affinity", "affinity", "null"),
    ("SchedulerName", "schedulerName", "\"\""),
    ("Tolerations", "tolerations", "null"),
    ("HostAliases", "hostAliases", "null"),
    ("PriorityClassName", "priorityClassName", "\"\""),
    ("Priority", "priority", "null"),
    ("DNSConfig", "dnsConfig", "null"),
    ("ReadinessGates", "readinessGates", "null"),
    ("RuntimeClassName", "runtimeClassName", "null"),
    ("EnableServiceLinks", "enableServiceLinks", "null"),
    ("PreemptionPolicy", "preemptionPolicy", "null"),
    ("Overhead", "overhead", "null"),
    ("TopologySpreadConstraints", "topologySpreadConstraints", "null"),
    ("SetHostnameAsFQDN", "setHostnameAsFQDN", "null"),
    ("OS", "os", "null"),
    ("HostUsers", "hostUsers", "null"),
    ("SchedulingGates", "schedulingGates", "null"),
    ("ResourceClaims", "resourceClaims", "null"),
    ("Resources", "resources", "null"),
    ("HostnameOverride", "hostnameOverride", "null"),
    ("SchedulingGroup", "schedulingGroup", "null"),
    ("EvictionResponders", "evictionResponders", "null"),
];

const CONTAINER: [Field; 25] = [
    ("Name", "name", "\"\""),
    ("Image", "image", "\"\""),
    ("Command", "command", "null"),
    ("Args", "args", "null"),
    ("WorkingDir", "workingDir", "\"\""),
    ("Ports", "ports", "null"),
    ("EnvFrom", "envFrom", "null"),
    ("Env", "env", "null"),
    ("Resources", "resources", "null"),
    ("ResizePolicy", "resizePolicy", "null"),
    ("RestartPolicy", "restartPolicy", "null"),
    ("RestartPolicyRules", "restartPolicyRules", "null"),
    ("VolumeMounts", "volumeMounts", "null"),
    ("VolumeDevices", "volumeDevices", "null"),
    ("LivenessProbe", "livenessProbe", "null"),
    ("ReadinessProbe", "readinessProbe", "null"),
    ("StartupProbe", "startupProbe", "null"),
    ("Lifecycle", "lifecycle", "null"),
    ("TerminationMessagePath", "terminationMessagePath", "\"\""),
    ("TerminationMessagePolicy", "terminationMessagePolicy", "\"\""),
    ("ImagePullPolicy", "imagePullPolicy", "\"\""),
    ("SecurityContext", "securityContext", "null"),
    ("Stdin", "stdin", "false"),
    ("StdinOnce", "stdinOnce", "false"),
    ("TTY", "tty", "false"),
];

const PORT: [Field; 5] = [
    ("Name", "name", "\"\""),
    ("HostPort", "hostPort", "0"),
    ("ContainerPort", "containerPort", "0"),
    ("Protocol", "protocol", "\"\""),
    ("HostIP", "hostIP", "\"\""),
];

const VARIABLE: [Field; 3] =
    [("Name", "name", "\"\""), ("Value", "value", "\"\""), ("ValueFrom", "valueFrom", "null")];

const RESOURCES: [Field; 3] =
    [("Limits", "limits", "null"), ("Requests", "requests", "null"), ("Claims", "claims", "null")];

const TOLERATION: [Field; 5] = [
    ("Key", "key", "\"\""),
    ("Operator", "operator", "\"\""),
    ("Value", "value", "\"\""),
    ("Effect", "effect", "\"\""),
    ("TolerationSeconds", "tolerationSeconds", "null"),
];

const SECURITY: [Field; 13] = [
    ("SELinuxOptions", "seLinuxOptions", "null"),
    ("WindowsOptions", "windowsOptions", "null"),
    ("RunAsUser", "runAsUser", "null"),
    ("RunAsGroup", "runAsGroup", "null"),
    ("RunAsNonRoot", "runAsNonRoot", "null"),
    ("SupplementalGroups", "supplementalGroups", "null"),
    ("SupplementalGroupsPolicy", "supplementalGroupsPolicy", "null"),
    ("FSGroup", "fsGroup", "null"),
    ("Sysctls", "sysctls", "null"),
    ("FSGroupChangePolicy", "fsGroupChangePolicy", "null"),
    ("SeccompProfile", "seccompProfile", "null"),
    ("AppArmorProfile", "appArmorProfile", "null"),
    ("SELinuxChangePolicy", "seLinuxChangePolicy", "null"),
];

/// Returns the difference between two specs. Fields with types that this module does not know
/// are printed as JSON.
pub(super) fn diff(old: &Value, new: &Value) -> String {
    let (old, new) = (lines(old), lines(new));
    let mut text = String::new();
    for group in groups(&old, &new) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let range = |range: Range<usize>| match range.len() {
            0 => format!("{},0", range.start),
            1 => format!("{}", range.start + 1),
            length => format!("{},{length}", range.start + 1),
        };
        let _ = writeln!(
            text,
            "@@ -{} +{} @@",
            range(first.0.start..last.0.end),
            range(first.1.start..last.1.end)
        );
        for (removed, added) in group {
            let is_same = old[removed.clone()] == new[added.clone()];
            let sign = if is_same { ' ' } else { '-' };
            for line in &old[removed] {
                let _ = writeln!(text, "{sign}{line}");
            }
            let added = if is_same { Vec::new() } else { new[added].to_vec() };
            for line in added {
                let _ = writeln!(text, "+{line}");
            }
        }
    }
    text
}

fn lines(spec: &Value) -> Vec<String> {
    let mut text = String::new();
    write_struct(spec, &SPEC, 0, &mut text);
    text.lines().map(str::to_owned).collect()
}

fn write_struct(value: &Value, fields: &[Field], depth: usize, text: &mut String) {
    let indent = " ".repeat(depth + 1);
    text.push_str("{\n");
    for (at, (name, field, unset)) in fields.iter().enumerate() {
        let _ = write!(text, "{indent}\"{name}\": ");
        write_field(name, &value[*field], unset, depth + 1, text);
        text.push_str(if at + 1 < fields.len() { ",\n" } else { "\n" });
    }
    let _ = write!(text, "{}}}", " ".repeat(depth));
}

fn write_field(name: &str, value: &Value, unset: &str, depth: usize, text: &mut String) {
    let inner: Option<&[Field]> = match name {
        "Containers" | "InitContainers" => Some(&CONTAINER),
        "Ports" => Some(&PORT),
        "Env" => Some(&VARIABLE),
        "Tolerations" => Some(&TOLERATION),
        "Resources" => Some(&RESOURCES),
        "SecurityContext" => Some(&SECURITY),
        _ => None,
    };
    match (value, inner) {
        // In Go, the resources of a container are a struct and not a pointer, so they are
        // printed even if they are not set.
        (Value::Null, Some(inner)) if name == "Resources" && depth > 1 => {
            write_struct(&json!({}), inner, depth, text);
        }
        (Value::Null, _) => text.push_str(unset),
        (Value::Array(items), Some(inner)) => {
            text.push_str("[\n");
            for (at, item) in items.iter().enumerate() {
                text.push_str(&" ".repeat(depth + 1));
                write_struct(item, inner, depth + 1, text);
                text.push_str(if at + 1 < items.len() { ",\n" } else { "\n" });
            }
            let _ = write!(text, "{}]", " ".repeat(depth));
        }
        (Value::Object(_), Some(inner)) => write_struct(value, inner, depth, text),
        _ => write_json(value, depth, text),
    }
}

fn write_json(value: &Value, depth: usize, text: &mut String) {
    let pretty = serde_json::to_string_pretty(value).unwrap_or_default();
    for (at, line) in pretty.lines().enumerate() {
        let trimmed = line.trim_start();
        let inner = (line.len() - trimmed.len()) / 2;
        if at > 0 {
            text.push('\n');
            text.push_str(&" ".repeat(depth + inner));
        }
        text.push_str(trimmed);
    }
}

/// Two corresponding ranges of lines, in the old and in the new text.
type Block = (Range<usize>, Range<usize>);

/// Returns the changes with the unchanged lines around them. Changes that are close together
/// form one group.
fn groups(old: &[String], new: &[String]) -> Vec<Vec<Block>> {
    let mut matches = Vec::new();
    find_matches(old, new, &(0..old.len(), 0..new.len()), &mut matches);
    matches.push((old.len()..old.len(), new.len()..new.len()));
    let mut groups: Vec<Vec<Block>> = Vec::new();
    let (mut at_old, mut at_new) = (0, 0);
    let mut before: Block = (0..0, 0..0);
    let mut joins = false;
    for (same_old, same_new) in matches {
        let change = (at_old..same_old.start, at_new..same_new.start);
        if !change.0.is_empty() || !change.1.is_empty() {
            if joins && let Some(group) = groups.last_mut() {
                group.push(before.clone());
                group.push(change);
            } else {
                let shown = before.0.len().min(CONTEXT);
                let context =
                    (before.0.end - shown..before.0.end, before.1.end - shown..before.1.end);
                groups.push(vec![context, change]);
            }
            joins = same_old.len() <= 2 * CONTEXT;
            if !joins || same_old.end == old.len() {
                let shown = same_old.len().min(CONTEXT);
                let context = (
                    same_old.start..same_old.start + shown,
                    same_new.start..same_new.start + shown,
                );
                groups.last_mut().into_iter().for_each(|group| group.push(context.clone()));
            }
        }
        (at_old, at_new) = (same_old.end, same_new.end);
        before = (same_old, same_new);
    }
    groups
}

/// Finds the equal ranges of lines like `difflib` of Python: first the longest one, and then
/// those before and after it.
fn find_matches(old: &[String], new: &[String], within: &Block, matches: &mut Vec<Block>) {
    let mut longest = (within.0.start, within.1.start, 0);
    for at_old in within.0.clone() {
        for at_new in within.1.clone() {
            let left = old[at_old..within.0.end].iter();
            let right = new[at_new..within.1.end].iter();
            let length = left.zip(right).take_while(|(left, right)| left == right).count();
            if length > longest.2 {
                longest = (at_old, at_new, length);
            }
        }
    }
    let (at_old, at_new, length) = longest;
    if length == 0 {
        return;
    }
    find_matches(old, new, &(within.0.start..at_old, within.1.start..at_new), matches);
    matches.push((at_old..at_old + length, at_new..at_new + length));
    let rest = (at_old + length..within.0.end, at_new + length..within.1.end);
    find_matches(old, new, &rest, matches);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_a_unified_diff_of_the_structs_in_go() {
        let spec = |policy: &str| {
            json!({ "containers": [{
                "name": "main",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": policy,
            }] })
        };
        let expected = "@@ -27,7 +27,7 @@\n    \"Lifecycle\": null,\n    \
                        \"TerminationMessagePath\": \"/dev/termination-log\",\n    \
                        \"TerminationMessagePolicy\": \"File\",\n-   \
                        \"ImagePullPolicy\": \"Always\",\n+   \
                        \"ImagePullPolicy\": \"IfNotPresent\",\n    \
                        \"SecurityContext\": null,\n    \"Stdin\": false,\n    \
                        \"StdinOnce\": false,\n";
        assert_eq!(diff(&spec("Always"), &spec("IfNotPresent")), expected);
        assert_eq!(diff(&spec("Always"), &spec("Always")), "");
    }
}
