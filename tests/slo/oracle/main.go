// A second opinion on OpenSLO v1 files: reads paths from standard input, one a line, and answers each with one line of JSON.
//
// The official SDK (github.com/OpenSLO/go-sdk) and its validation library (github.com/nobl9/govy) cannot be had from the module proxy that
// this project builds with. What decides most traps can: sigs.k8s.io/yaml and encoding/json, with which the SDK decodes. So this program
// decodes with the very same libraries into structs with the same fields, and restates the SDK's rules, written independently of the Rust
// code. tests/slo/compare.py holds it against the recorded verdicts of the real SDK first.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
	_ "time/tzdata"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

type version string
type kind string

func (v *version) UnmarshalText(b []byte) error {
	switch string(b) {
	case "openslo/v1", "openslo/v1alpha", "openslo.com/v2alpha":
		*v = version(b)
		return nil
	}
	return errors.New("unsupported version")
}

func (k *kind) UnmarshalText(b []byte) error {
	switch string(b) {
	case "SLO", "SLI", "DataSource", "Service", "AlertPolicy", "AlertCondition", "AlertNotificationTarget":
		*k = kind(b)
		return nil
	}
	return errors.New("unsupported kind")
}

type duration struct {
	value int
	unit  string
}

func (d *duration) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if n, err := fmt.Sscanf(string(b), "%d%s", &d.value, &d.unit); err != nil || n != 2 {
		return errors.New("no duration")
	}
	return nil
}

type label []string

func (l *label) UnmarshalJSON(b []byte) error {
	var many []string
	if json.Unmarshal(b, &many) == nil {
		*l = many
		return nil
	}
	var one string
	if err := json.Unmarshal(b, &one); err != nil {
		return err
	}
	*l = label{one}
	return nil
}

type metadata struct {
	Name        string            `json:"name"`
	DisplayName string            `json:"displayName"`
	Labels      map[string]label  `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

type source struct {
	MetricSourceRef string         `json:"metricSourceRef"`
	Type            string         `json:"type"`
	Spec            map[string]any `json:"spec"`
}
type metric struct {
	MetricSource source `json:"metricSource"`
}
type ratio struct {
	Counter bool    `json:"counter"`
	Good    *metric `json:"good"`
	Bad     *metric `json:"bad"`
	Total   *metric `json:"total"`
	RawType string  `json:"rawType"`
	Raw     *metric `json:"raw"`
}
type sliSpec struct {
	Description     string  `json:"description"`
	ThresholdMetric *metric `json:"thresholdMetric"`
	RatioMetric     *ratio  `json:"ratioMetric"`
}
type indicator struct {
	Metadata metadata `json:"metadata"`
	Spec     sliSpec  `json:"spec"`
}
type objective struct {
	DisplayName     string     `json:"displayName"`
	Op              string     `json:"op"`
	Value           *float64   `json:"value"`
	Target          *float64   `json:"target"`
	TargetPercent   *float64   `json:"targetPercent"`
	TimeSliceTarget *float64   `json:"timeSliceTarget"`
	TimeSliceWindow *duration  `json:"timeSliceWindow"`
	Indicator       *indicator `json:"indicator"`
	IndicatorRef    *string    `json:"indicatorRef"`
	CompositeWeight *float64   `json:"compositeWeight"`
}
type calendar struct {
	StartTime string `json:"startTime"`
	TimeZone  string `json:"timeZone"`
}
type window struct {
	Duration  duration  `json:"duration"`
	IsRolling bool      `json:"isRolling"`
	Calendar  *calendar `json:"calendar"`
}
type conditionType struct {
	Kind           string    `json:"kind"`
	Op             string    `json:"op"`
	Threshold      *float64  `json:"threshold"`
	LookbackWindow duration  `json:"lookbackWindow"`
	AlertAfter     *duration `json:"alertAfter"`
}
type conditionSpec struct {
	Severity    string        `json:"severity"`
	Condition   conditionType `json:"condition"`
	Description string        `json:"description"`
}
type targetSpec struct {
	Description string `json:"description"`
	Target      string `json:"target"`
}
type ConditionRef struct {
	ConditionRef string `json:"conditionRef"`
}
type ConditionInline struct {
	Kind     kind          `json:"kind"`
	Metadata metadata      `json:"metadata"`
	Spec     conditionSpec `json:"spec"`
}
type policyCondition struct {
	*ConditionRef
	*ConditionInline
}
type TargetRef struct {
	TargetRef string `json:"targetRef"`
}
type TargetInline struct {
	Kind     kind       `json:"kind"`
	Metadata metadata   `json:"metadata"`
	Spec     targetSpec `json:"spec"`
}
type policyTarget struct {
	*TargetRef
	*TargetInline
}
type policySpec struct {
	Description         string            `json:"description"`
	AlertWhenNoData     bool              `json:"alertWhenNoData"`
	AlertWhenBreaching  bool              `json:"alertWhenBreaching"`
	AlertWhenResolved   bool              `json:"alertWhenResolved"`
	Conditions          []policyCondition `json:"conditions"`
	NotificationTargets []policyTarget    `json:"notificationTargets"`
}
type PolicyRef struct {
	AlertPolicyRef string `json:"alertPolicyRef"`
}
type PolicyInline struct {
	Kind     kind       `json:"kind"`
	Metadata metadata   `json:"metadata"`
	Spec     policySpec `json:"spec"`
}
type sloPolicy struct {
	*PolicyInline
	*PolicyRef
}
type sloSpec struct {
	Description     string      `json:"description"`
	Service         string      `json:"service"`
	Indicator       *indicator  `json:"indicator"`
	IndicatorRef    *string     `json:"indicatorRef"`
	BudgetingMethod string      `json:"budgetingMethod"`
	TimeWindow      []window    `json:"timeWindow"`
	Objectives      []objective `json:"objectives"`
	AlertPolicies   []sloPolicy `json:"alertPolicies"`
}
type serviceSpec struct {
	Description string `json:"description"`
}
type dataSourceSpec struct {
	Description       string          `json:"description"`
	Type              string          `json:"type"`
	ConnectionDetails json.RawMessage `json:"connectionDetails"`
}
type object[S any] struct {
	APIVersion version  `json:"apiVersion"`
	Kind       kind     `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       S        `json:"spec"`
}

type generic struct {
	version version
	kind    kind
	data    json.RawMessage
}

func (g *generic) UnmarshalJSON(b []byte) error {
	var head struct {
		APIVersion version `json:"apiVersion"`
		Kind       kind    `json:"kind"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return err
	}
	g.version, g.kind, g.data = head.APIVersion, head.Kind, append(json.RawMessage{}, b...)
	return nil
}

// The faults that the rules find.
type faults []string

func (f *faults) when(wrong bool, format string, args ...any) {
	if wrong {
		*f = append(*f, fmt.Sprintf(format, args...))
	}
}

var (
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	labelKey  = regexp.MustCompile(`^[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$`)
	noteSize  = regexp.MustCompile(`^(.{0,253}/)?.{0,63}$`)
	noteKey   = regexp.MustCompile(`^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*/)?[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$`)
	operators = map[string]bool{"gt": true, "lt": true, "gte": true, "lte": true}
)

func (f *faults) dns(path, s string) {
	n := utf8.RuneCountInString(s)
	f.when(n < 1 || n > 63 || !dnsLabel.MatchString(s), "%s: no label", path)
}
func (f *faults) description(path, s string) {
	f.when(utf8.RuneCountInString(s) > 1050, "%s.description: too long", path)
}
func (f *faults) duration(path string, d duration) {
	f.when(!strings.Contains("m h d w M Q Y", d.unit) || len(d.unit) != 1, "%s: unit", path)
	f.when(d.value < 0, "%s: negative", path)
}
func (f *faults) metadata(path string, m metadata) {
	f.dns(path+".name", m.Name)
	f.when(utf8.RuneCountInString(m.DisplayName) > 63, "%s.displayName: too long", path)
	for key := range m.Labels {
		f.when(!labelKey.MatchString(key), "%s.labels: key", path)
	}
	for key := range m.Annotations {
		f.when(!noteSize.MatchString(key) || !noteKey.MatchString(key), "%s.annotations: key", path)
	}
}
func (f *faults) metric(path string, m *metric) {
	if m == nil {
		return
	}
	if ref := m.MetricSource.MetricSourceRef; ref != "" {
		f.dns(path+".metricSource.metricSourceRef", ref)
	}
	f.when(len(m.MetricSource.Spec) == 0, "%s.metricSource.spec: empty", path)
}
func (f *faults) sli(path string, s sliSpec) {
	f.description(path, s.Description)
	f.when((s.ThresholdMetric == nil) == (s.RatioMetric == nil), "%s: one of thresholdMetric, ratioMetric", path)
	f.metric(path+".thresholdMetric", s.ThresholdMetric)
	r := s.RatioMetric
	if r == nil {
		return
	}
	path += ".ratioMetric"
	several := 0
	for _, m := range []*metric{r.Raw, r.Good, r.Bad} {
		if m != nil {
			several++
		}
	}
	if (r.Total == nil) == (r.Raw == nil) || several > 1 {
		f.when(true, "%s: exclusive", path)
		return
	}
	if r.Total != nil {
		f.when(several == 0, "%s: good or bad", path)
		f.metric(path+".total", r.Total)
		f.metric(path+".good", r.Good)
		f.metric(path+".bad", r.Bad)
	} else {
		f.metric(path+".raw", r.Raw)
		f.when(r.RawType != "success" && r.RawType != "failure", "%s.rawType", path)
	}
}
func (f *faults) indicator(path string, inline *indicator, ref *string) {
	switch {
	case inline != nil && ref != nil:
		f.when(true, "%s: indicator and indicatorRef", path)
	case inline != nil:
		f.metadata(path+".indicator.metadata", inline.Metadata)
		f.sli(path+".indicator.spec", inline.Spec)
	case ref != nil:
		f.dns(path+".indicatorRef", *ref)
	}
}
func (f *faults) condition(path string, s conditionSpec) {
	f.description(path, s.Description)
	f.when(s.Severity == "", "%s.severity", path)
	c := s.Condition
	f.when(c.Kind != "burnrate", "%s.condition.kind", path)
	if c.Kind == "burnrate" {
		f.when(!operators[c.Op], "%s.condition.op", path)
		f.when(c.Threshold == nil, "%s.condition.threshold", path)
		f.duration(path+".condition.lookbackWindow", c.LookbackWindow)
		if c.AlertAfter != nil {
			f.duration(path+".condition.alertAfter", *c.AlertAfter)
		}
	}
}
func (f *faults) target(path string, s targetSpec) {
	f.description(path, s.Description)
	f.when(s.Target == "", "%s.target", path)
}
func (f *faults) policy(path string, s policySpec) {
	f.description(path, s.Description)
	f.when(len(s.Conditions) != 1, "%s.conditions", path)
	f.when(len(s.NotificationTargets) == 0, "%s.notificationTargets", path)
	for i, c := range s.Conditions {
		at := fmt.Sprintf("%s.conditions[%d]", path, i)
		switch {
		case (c.ConditionRef == nil) == (c.ConditionInline == nil):
			f.when(true, "%s: exclusive", at)
		case c.ConditionRef != nil:
			f.dns(at+".conditionRef", c.ConditionRef.ConditionRef)
		default:
			f.when(c.Kind != "AlertCondition", "%s.kind", at)
			f.metadata(at+".metadata", c.Metadata)
			f.condition(at+".spec", c.Spec)
		}
	}
	for i, t := range s.NotificationTargets {
		at := fmt.Sprintf("%s.notificationTargets[%d]", path, i)
		switch {
		case (t.TargetRef == nil) == (t.TargetInline == nil):
			f.when(true, "%s: exclusive", at)
		case t.TargetRef != nil:
			f.dns(at+".targetRef", t.TargetRef.TargetRef)
		default:
			f.when(t.Kind != "AlertNotificationTarget", "%s.kind", at)
			f.metadata(at+".metadata", t.Metadata)
			f.target(at+".spec", t.Spec)
		}
	}
}
func (f *faults) slo(s sloSpec) {
	composite := false
	for _, o := range s.Objectives {
		composite = composite || o.Indicator != nil || o.IndicatorRef != nil
	}
	f.when(composite == (s.Indicator != nil || s.IndicatorRef != nil), "spec: where is the indicator")
	f.indicator("spec", s.Indicator, s.IndicatorRef)
	f.description("spec", s.Description)
	f.when(s.Service == "", "spec.service")
	slices := s.BudgetingMethod == "Timeslices" || s.BudgetingMethod == "RatioTimeslices"
	f.when(!slices && s.BudgetingMethod != "Occurrences", "spec.budgetingMethod")
	f.when(len(s.TimeWindow) != 1, "spec.timeWindow")
	for _, w := range s.TimeWindow {
		f.when(w.IsRolling == (w.Calendar != nil), "spec.timeWindow[0]: calendar")
		f.duration("spec.timeWindow[0].duration", w.Duration)
		if c := w.Calendar; c != nil {
			_, err := time.Parse(time.DateTime, c.StartTime)
			f.when(err != nil, "spec.timeWindow[0].calendar.startTime")
			_, err = time.LoadLocation(c.TimeZone)
			f.when(err != nil || c.TimeZone == "" || c.TimeZone == "Local", "spec.timeWindow[0].calendar.timeZone")
		}
	}
	for i, p := range s.AlertPolicies {
		at := fmt.Sprintf("spec.alertPolicies[%d]", i)
		switch {
		case (p.PolicyRef == nil) == (p.PolicyInline == nil):
			f.when(true, "%s: exclusive", at)
		case p.PolicyRef != nil:
			f.dns(at+".alertPolicyRef", p.PolicyRef.AlertPolicyRef)
		default:
			f.when(p.Kind != "AlertPolicy", "%s.kind", at)
			f.metadata(at+".metadata", p.Metadata)
			f.policy(at+".spec", p.Spec)
		}
	}
	for i, o := range s.Objectives {
		at := fmt.Sprintf("spec.objectives[%d]", i)
		f.when((o.Target == nil) == (o.TargetPercent == nil), "%s: target", at)
		f.when(o.Target != nil && (*o.Target < 0 || *o.Target >= 1), "%s.target", at)
		f.when(o.TargetPercent != nil && (*o.TargetPercent < 0 || *o.TargetPercent >= 100), "%s.targetPercent", at)
		if in := s.Indicator; in != nil && in.Spec.RatioMetric != nil {
			f.when(o.Value != nil || o.Op != "", "%s: forbidden", at)
		}
		if in := s.Indicator; in != nil && in.Spec.ThresholdMetric != nil {
			f.when(o.Value == nil || !operators[o.Op], "%s: value and op", at)
		}
		if composite {
			f.indicator(at, o.Indicator, o.IndicatorRef)
			f.when(o.CompositeWeight != nil && *o.CompositeWeight <= 0, "%s.compositeWeight", at)
		}
		if s.BudgetingMethod == "Timeslices" {
			f.when(o.TimeSliceTarget == nil || *o.TimeSliceTarget <= 0 || *o.TimeSliceTarget > 1, "%s.timeSliceTarget", at)
		}
		if slices {
			if o.TimeSliceWindow == nil {
				f.when(true, "%s.timeSliceWindow", at)
			} else {
				f.duration(at+".timeSliceWindow", *o.TimeSliceWindow)
			}
		}
	}
}

func decode[S any](g generic, rules func(*faults, S)) (faults, error) {
	var o object[S]
	dec := json.NewDecoder(bytes.NewReader(g.data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&o); err != nil {
		return nil, err
	}
	var f faults
	f.metadata("metadata", o.Metadata)
	rules(&f, o.Spec)
	return f, nil
}

func check(g generic) (faults, error) {
	if g.version != "openslo/v1" {
		return nil, fmt.Errorf("version %q", g.version)
	}
	switch g.kind {
	case "SLO":
		return decode(g, func(f *faults, s sloSpec) { f.slo(s) })
	case "SLI":
		return decode(g, func(f *faults, s sliSpec) { f.sli("spec", s) })
	case "Service":
		return decode(g, func(f *faults, s serviceSpec) { f.description("spec", s.Description) })
	case "AlertPolicy":
		return decode(g, func(f *faults, s policySpec) { f.policy("spec", s) })
	case "AlertCondition":
		return decode(g, func(f *faults, s conditionSpec) { f.condition("spec", s) })
	case "AlertNotificationTarget":
		return decode(g, func(f *faults, s targetSpec) { f.target("spec", s) })
	case "DataSource":
		return decode(g, func(f *faults, s dataSourceSpec) {
			f.description("spec", s.Description)
			f.when(s.Type == "", "spec.type")
			f.when(s.ConnectionDetails == nil, "spec.connectionDetails")
		})
	}
	return nil, fmt.Errorf("kind %q", g.kind)
}

// Documents are cut at lines that begin with `---`, before YAML is read.
func cut(data []byte, atEOF bool) (int, []byte, error) {
	if atEOF && len(data) == 0 {
		return 0, nil, nil
	}
	if i := bytes.Index(data, []byte("\n---")); i >= 0 {
		behind := data[i+4:]
		if end := bytes.IndexByte(behind, '\n'); end >= 0 {
			return i + 4 + end + 1, data[:i], nil
		}
		if atEOF && len(behind) == 0 {
			return len(data), data[:i], nil
		}
		return 0, nil, nil
	}
	if atEOF {
		return len(data), data, nil
	}
	return 0, nil, nil
}

func isList(doc []byte) bool {
	for _, line := range strings.Split(string(doc), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line == "---" {
			continue
		}
		return line[0] == '[' || line[0] == '-'
	}
	return false
}

func objects(path string, data []byte) ([]generic, error) {
	var all []generic
	unmarshal, docs := func(b []byte, v any) error { return yaml.Unmarshal(b, v) }, [][]byte{}
	if strings.HasSuffix(path, ".json") {
		unmarshal, docs = json.Unmarshal, [][]byte{data}
	} else {
		scanner := bufio.NewScanner(bytes.NewReader(data))
		scanner.Buffer(make([]byte, 0, len(data)+1), len(data)+1)
		scanner.Split(cut)
		for scanner.Scan() {
			docs = append(docs, append([]byte{}, scanner.Bytes()...))
		}
		if err := scanner.Err(); err != nil {
			return nil, err
		}
	}
	for _, doc := range docs {
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		if isList(doc) {
			var many []generic
			if err := unmarshal(doc, &many); err != nil {
				return nil, err
			}
			all = append(all, many...)
			continue
		}
		var one generic
		if err := unmarshal(doc, &one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func verdict(path string) (bool, string) {
	data, err := os.ReadFile(path)
	if err != nil {
		return false, err.Error()
	}
	all, err := objects(path, data)
	if err != nil {
		return false, err.Error()
	}
	var wrong faults
	for _, g := range all {
		f, err := check(g)
		if err != nil {
			return false, err.Error()
		}
		wrong = append(wrong, f...)
	}
	return len(wrong) == 0, strings.Join(wrong, "; ")
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		valid, why := verdict(in.Text())
		_ = out.Encode(map[string]any{"file": in.Text(), "valid": valid, "why": why})
	}
}
