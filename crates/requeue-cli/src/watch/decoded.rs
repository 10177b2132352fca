//! Decodes each object of a list separately, so that an invalid object does not make the whole list fail.
//!
//! kube's `DeserializeGuard` has the same purpose. With it, the list still fails if an object is nested too deeply.

use std::borrow::Cow;

use http::Response;
use http_body_util::BodyExt;
use kube::Resource;
use kube::core::ObjectMeta;
use kube::core::error_boundary::InvalidObject;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An object, or the name of an object that cannot be decoded.
#[derive(Clone, Debug)]
pub(crate) struct Decoded<K>(pub(crate) Result<K, Box<InvalidObject>>);

impl<'de, K: DeserializeOwned + Resource> Deserialize<'de> for Decoded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // serde_json skips a raw value without recursion, so the value may be nested to any depth.
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let object = match serde_json::from_str::<K>(raw.get()) {
            Ok(object) if object.meta().name.as_deref().is_none_or(str::is_empty) => {
                Err("it has no name".to_owned())
            }
            object => object.map_err(|error| error.to_string()),
        };
        Ok(Self(object.map_err(|error| {
            let metadata = serde_json::from_str(raw.get()).map(Named::metadata).unwrap_or_default();
            Box::new(InvalidObject { error, metadata })
        })))
    }
}

/// The fields that name an object, and its resource version. Without the version, kube's watcher would list all
/// objects again. Other metadata is not decoded, because it may be nested too deeply.
#[derive(Deserialize)]
struct Named {
    metadata: Names,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Names {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl Named {
    fn metadata(self) -> ObjectMeta {
        let Names { name, namespace, uid, resource_version } = self.metadata;
        ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() }
    }
}

/// Replaces bytes that are not UTF-8 with U+FFFD, as kubectl does. kube's client would otherwise fail a list or a
/// watch that contains such bytes.
pub(crate) fn replace_invalid_utf8<B>(
    response: Response<B>,
) -> Response<impl BodyExt<Data = B::Data, Error = B::Error>>
where
    B: BodyExt<Data: AsRef<[u8]> + From<Vec<u8>>>,
{
    response.map(|body| {
        let mut cut = Vec::new();
        body.map_frame(move |frame| frame.map_data(|data| valid_text(&mut cut, data)))
    })
}

/// Converts the bytes in `cut` and then `data` to text. If the last character is incomplete, moves its bytes to `cut`.
fn valid_text<D: AsRef<[u8]> + From<Vec<u8>>>(cut: &mut Vec<u8>, data: D) -> D {
    if cut.is_empty() && str::from_utf8(data.as_ref()).is_ok() {
        return data;
    }
    let mut bytes = [cut, data.as_ref()].concat();
    let last = bytes.utf8_chunks().last().map_or(0, |chunk| chunk.invalid().len());
    let last = bytes.len() - last;
    let is_cut = str::from_utf8(&bytes[last..]).is_err_and(|error| error.error_len().is_none());
    *cut = if is_cut { bytes.split_off(last) } else { Vec::new() };
    String::from_utf8_lossy(&bytes).into_owned().into_bytes().into()
}

impl<K: Resource> Resource for Decoded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn kind(kind: &K::DynamicType) -> Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &K::DynamicType) -> Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &K::DynamicType) -> Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &K::DynamicType) -> Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|invalid| &invalid.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|invalid| &mut invalid.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{DynamicObject, ObjectList, PartialObjectMeta, WatchEvent};

    use super::*;

    fn object(name: &str, spec: &str, managed: &str) -> String {
        format!(
            r#"{{"apiVersion":"v1","kind":"Thing","metadata":{{"name":"{name}","namespace":"ns","uid":"u","resourceVersion":"5",
            "managedFields":[{{"fieldsV1":{managed}}}]}},"spec":{spec}}}"#
        )
    }

    fn deep(levels: usize) -> String {
        format!("{}1{}", r#"{"f:a":"#.repeat(levels), "}".repeat(levels))
    }

    fn names<K: Resource>(list: &[Decoded<K>]) -> Vec<(&str, bool)> {
        list.iter().map(|it| (it.meta().name.as_deref().unwrap_or(""), it.0.is_ok())).collect()
    }

    #[test]
    fn an_object_that_is_nested_too_deep_takes_no_list_and_no_watch_with_it() {
        for levels in [130, 9_000] {
            let (deep, items) = (deep(levels), |hostile: [&str; 2]| {
                let hostile = object("hostile", hostile[0], hostile[1]);
                let items = [object("a", "1", "{}"), hostile, object("b", "{}", "{}")].join(",");
                format!(
                    r#"{{"kind":"ThingList","metadata":{{"resourceVersion":"7"}},"items":[{items}]}}"#
                )
            });
            let all = [("a", true), ("hostile", false), ("b", true)];
            for hostile in [[&*deep, "{}"], ["1", &deep]] {
                let list: ObjectList<Decoded<DynamicObject>> =
                    serde_json::from_str(&items(hostile)).unwrap();
                assert_eq!(names(&list.items), all);
                assert_eq!(list.metadata.resource_version.as_deref(), Some("7"));
                let invalid = list.items[1].0.as_ref().unwrap_err();
                assert!(invalid.error.starts_with("recursion limit exceeded"), "{invalid}");
                assert_eq!(invalid.metadata.namespace.as_deref(), Some("ns"));
                assert_eq!(invalid.metadata.resource_version.as_deref(), Some("5"));
                // The list fails both with kube's guard and without it.
                assert!(
                    serde_json::from_str::<ObjectList<DynamicObject>>(&items(hostile)).is_err()
                );
                let event = object("hostile", hostile[0], hostile[1]);
                let event = format!(r#"{{"type":"MODIFIED","object":{event}}}"#);
                let event: WatchEvent<Decoded<DynamicObject>> =
                    serde_json::from_str(&event).unwrap();
                let WatchEvent::Modified(object) = event else { panic!("{event:?}") };
                assert_eq!(names(&[object]), [("hostile", false)]);
            }
            let list: ObjectList<Decoded<PartialObjectMeta<DynamicObject>>> =
                serde_json::from_str(&items(["1", &deep])).unwrap();
            assert_eq!(names(&list.items), all);
        }
    }

    #[test]
    fn an_object_of_another_form_is_named_too() {
        let list =
            r#"{"metadata":{},"items":[{"metadata":{"name":"x","labels":7}},{"metadata":7},8]}"#;
        let list: ObjectList<Decoded<DynamicObject>> = serde_json::from_str(list).unwrap();
        assert_eq!(names(&list.items), [("x", false), ("", false), ("", false)]);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced_wherever_a_frame_begins() {
        let bytes = b"\xff a\xc3\xa9\xe2\x82(\xf0\x9f\x92\x96\xed\xa0\x80";
        let text = String::from_utf8_lossy(bytes);
        for size in 1..=bytes.len() {
            let mut cut = Vec::new();
            let frames = bytes.chunks(size).map(|frame| valid_text(&mut cut, frame.to_vec()));
            assert_eq!(String::from_utf8(frames.flatten().collect()).unwrap(), text, "{size}");
        }
    }
}
