//! The JSON Schema for editors, made from the tables that the strict reader goes by. It is as strict about keys and types as the
//! reader; what one field demands of another is left to `slo validate`.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::spec::openslo::tables::V1;
use crate::spec::ours::tables::{ALERT_WINDOWS, SHORT_DOCUMENT, SOURCE};
use crate::spec::shape::{Object, Ty};

/// The schema (draft 2020-12) of a document: OpenSLO v1, the short form, or Sloth's alert windows.
pub fn schema() -> Value {
    let mut definitions = Map::new();
    let mut documents = vec![reference(&SHORT_DOCUMENT, &mut definitions), reference(&ALERT_WINDOWS, &mut definitions)];
    let _ = reference(&SOURCE, &mut definitions);
    for (kind, object) in V1 {
        let document = reference(object, &mut definitions);
        if let Some(properties) = definitions.get_mut(object.name).and_then(|d| d.get_mut("properties")) {
            properties["apiVersion"] = json!({"const": "openslo/v1"});
            properties["kind"] = json!({"const": kind});
        }
        documents.push(document);
    }
    if let Some(source) = definitions.get_mut("MetricSource").and_then(Value::as_object_mut) {
        // What is ours is checked to the letter; every other source may say what it likes.
        source.insert("if".into(), json!({"properties": {"type": {"const": "tokengauge"}}, "required": ["type"]}));
        source.insert("then".into(), json!({"properties": {"spec": {"$ref": "#/$defs/TokengaugeSource"}}}));
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tokengauge SLO",
        "description": "OpenSLO v1 documents, tokengauge's short form, and Sloth's AlertWindows.",
        "oneOf": documents,
        "$defs": definitions,
    })
}

/// A reference to an object's definition, which is made when it is not there yet.
fn reference(object: &Object, definitions: &mut Map<String, Value>) -> Value {
    if !definitions.contains_key(object.name) {
        // Held open first: definitions may come round to themselves.
        definitions.insert(object.name.into(), Value::Null);
        let mut properties = Map::new();
        let mut required = BTreeSet::new();
        for field in object.fields {
            let mut value = of(&field.ty, definitions);
            if let Some(map) = value.as_object_mut() {
                map.insert("description".into(), field.doc.into());
            }
            properties.insert(field.key.into(), value);
            if field.required {
                required.insert(field.key);
            }
        }
        let mut definition = json!({
            "type": "object",
            "description": object.doc,
            "properties": properties,
            "additionalProperties": false,
        });
        if !required.is_empty() {
            definition["required"] = json!(required);
        }
        definitions.insert(object.name.into(), definition);
    }
    json!({"$ref": format!("#/$defs/{}", object.name)})
}

fn of(ty: &Ty, definitions: &mut Map<String, Value>) -> Value {
    match ty {
        Ty::Text => json!({"type": "string"}),
        Ty::Word(words) | Ty::Name(words) => json!({"enum": words}),
        Ty::Form(form) if form.number => {
            json!({"anyOf": [{"type": "number"}, {"type": "string", "pattern": form.pattern}], "examples": [form.example]})
        }
        Ty::Form(form) => json!({"type": "string", "pattern": form.pattern, "examples": [form.example]}),
        Ty::Bool => json!({"type": "boolean"}),
        Ty::Number => json!({"type": "number"}),
        Ty::Integer => json!({"type": "integer"}),
        Ty::Shorthand => json!({"type": "string", "pattern": "^[0-9]+[mhdwMQY]$", "examples": ["30d"]}),
        Ty::Any => json!({}),
        Ty::AnyMap => json!({"type": "object", "minProperties": 1}),
        Ty::Texts => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        Ty::Labels => {
            let list = json!({"type": "array", "items": {"type": "string"}});
            json!({"type": "object", "additionalProperties": {"anyOf": [{"type": "string"}, list]}})
        }
        Ty::Object(object) => reference(object, definitions),
        Ty::Keyed(form, inner) => {
            let inner = of(inner, definitions);
            json!({"type": "object", "propertyNames": {"pattern": form.pattern}, "additionalProperties": inner, "minProperties": 1})
        }
        Ty::List(inner) => json!({"type": "array", "items": of(inner, definitions)}),
        Ty::Either(types) => json!({"anyOf": types.iter().map(|t| of(t, definitions)).collect::<Vec<_>>()}),
    }
}
