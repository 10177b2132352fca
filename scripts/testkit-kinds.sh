#!/usr/bin/env bash
# Writes the testkit's tables of kinds and schemas from the sources of Kubernetes, which `make e2e` downloads.
#
# Beta and alpha versions are left out, and so is each version of a kind but one: the testkit converts nothing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

version=$(sed -n 's/^\tk8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' e2e/server/go.mod)
api=$(go env GOMODCACHE)/k8s.io/kubernetes@$version/api
tables=crates/requeue-testkit/src/builtin

groups=(
    api__v1 apis__{apps,batch}__v1 apis__autoscaling__v2 apis__policy__v1
    apis__{networking,rbac.authorization,storage,coordination,discovery,events,scheduling,node}.k8s.io__v1
    apis__{apiextensions,apiregistration,admissionregistration,authorization,authentication}.k8s.io__v1
    apis__certificates.k8s.io__v1 apis__flowcontrol.apiserver.k8s.io__v1
    apis__{resource,storagemigration}.k8s.io__v1
)

for group in "${groups[@]}"; do
    jq -r '
        def words: if length == 0 then "-" else join(",") end;
        .groupVersion as $version | .resources as $all | $all[] | select(.name | contains("/") | not)
        | .name as $name
        | [
            $version, $name, .kind, .singularName, (if .namespaced then "N" else "C" end),
            (.shortNames // [] | words), (.categories // [] | words),
            ([$all[].name | select(startswith($name + "/")) | .[($name | length) + 1:]] | words),
            (if (.verbs | length) == 8 then "*" else .verbs | words end)
        ] | join(" ")' "$api/discovery/$group.json"
done >"$tables/kinds.txt"

# The schemas of the kinds that the testkit stores, one definition a line.
schemas=()
for group in "${groups[@]}"; do
    case $group in
    apis__apiregistration* | apis__admission* | apis__auth* | apis__certificates* | apis__flowcontrol*) ;;
    apis__resource* | apis__storagemigration*) ;;
    *) schemas+=("$api/openapi-spec/v3/${group}_openapi.json") ;;
    esac
done
jq -rs '
    def short:
        sub("^#/components/schemas/"; "") | gsub("io\\.k8s\\.apimachinery\\.pkg\\."; "")
        | gsub("io\\.k8s\\.api\\."; "") | gsub("io\\.k8s\\.apiextensions-apiserver\\.pkg\\.apis\\."; "");
    # Zero values are no defaults, except for structs that are not behind a pointer.
    def is_zero: . as $it | any("", 0, null, false; . == $it);
    def convert:
        (if (.allOf | length) == 1 then .allOf[0] + del(.allOf) else . end)
        | del(.description, .["x-kubernetes-group-version-kind"], .["x-kubernetes-unions"])
        | (if has("default") and ((.default | is_zero) or (.default == {} and (has("$ref") | not)))
            then del(.default) else . end)
        | (if has("$ref") then .["$ref"] |= short else . end)
        | (if has("properties") then .properties |= map_values(convert) else . end)
        | (if has("items") then .items |= convert else . end)
        | (if (.additionalProperties | type) == "object" then .additionalProperties |= convert else . end);
    def references: [.. | objects | .["$ref"]? | strings | sub("^#/components/schemas/"; "")];
    (map(.components.schemas) | reverse | add) as $all
    | [
        .[] | (.paths | keys[0]) as $path
        | .components.schemas | to_entries[]
        | select((.key | endswith("List") | not) and .value.properties.metadata)
        | select((.value["x-kubernetes-group-version-kind"] // []) | length == 1)
        | .value["x-kubernetes-group-version-kind"][0] as $kind
        | ([$kind.group, $kind.version] | map(select(. != "")) | join("/")) as $version
        | select($path == "/api/\($version)/" or $path == "/apis/\($version)/")
        | { key: "\($version)/\($kind.kind)", value: .key }
    ] | from_entries as $kinds
    | { seen: {}, next: ($kinds | map(.) | unique) }
    | until(.next == [];
        (.next | map({ key: ., value: true }) | from_entries) as $new
        | (.seen + $new) as $seen
        | { seen: $seen, next: ([.next[] | $all[.] | references[]] | unique | map(select($seen[.] | not))) })
    | [.seen | keys[] | { key: short, value: ($all[.] | convert) }] as $definitions
    | "{\"definitions\":{",
      ([$definitions[] | "\(.key | tojson):\(.value | tojson)"] | join(",\n")),
      "},\"kinds\":\($kinds | map_values(short) | tojson)}"
' "${schemas[@]}" >"$tables/schemas.json"
