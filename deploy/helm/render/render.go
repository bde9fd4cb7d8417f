// SPDX-License-Identifier: Apache-2.0

// render does what `helm template` does with a chart, as far as ours needs it, with packages of Debian
// only: Helm itself is in neither Debian nor PyPI. It has the same template language and functions
// (text/template and sprig), the same YAML and the same reader of JSON schemas as Helm 3. It is
// stricter: a value that is missing is an error, not an empty text. What our chart doesn't use is not
// there and fails: dependencies, hooks, tpl, lookup, .Files.
//
//	render CHART RELEASE NAMESPACE [VALUES.yaml…]
//
// prints a JSON object: for each template its path below templates/ and what came out.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"github.com/ghodss/yaml"
	"github.com/xeipuuv/gojsonschema"
)

type object = map[string]interface{}

func read(path string) (object, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := object{}
	if err := yaml.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

// merge puts `over` over `under`, as Helm does: objects member by member, and null removes a value.
func merge(under, over object) {
	for key, value := range over {
		inner, isObject := value.(object)
		if below, ok := under[key].(object); ok && isObject {
			merge(below, inner)
		} else if value == nil {
			delete(under, key)
		} else {
			under[key] = value
		}
	}
}

func check(values object, path string) error {
	schema, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	result, err := gojsonschema.Validate(gojsonschema.NewBytesLoader(schema), gojsonschema.NewGoLoader(values))
	if err != nil || result.Valid() {
		return err
	}
	lines := []string{"the values do not fit values.schema.json:"}
	for _, problem := range result.Errors() {
		lines = append(lines, "- "+problem.String())
	}
	return errors.New(strings.Join(lines, "\n"))
}

func functions(all *template.Template) template.FuncMap {
	out := sprig.TxtFuncMap()
	delete(out, "env")
	delete(out, "expandenv")
	depth := 0
	out["include"] = func(name string, data interface{}) (string, error) {
		if depth++; depth > 100 {
			return "", fmt.Errorf("%s includes itself", name)
		}
		defer func() { depth-- }()
		var text strings.Builder
		err := all.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	out["required"] = func(problem string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, errors.New(problem)
		}
		return value, nil
	}
	out["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	return out
}

// parse reads all templates below CHART/templates. Their names start with the chart's, as in Helm.
func parse(folder, chart string) (*template.Template, []string, error) {
	all := template.New("chart").Option("missingkey=error")
	all.Funcs(functions(all))
	names := []string{}
	root := filepath.Join(folder, "templates")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(entry.Name(), "_") {
			names = append(names, name)
		}
		_, err = all.New(chart + "/templates/" + name).Parse(string(text))
		return err
	})
	return all, names, err
}

func render(folder, release, namespace string, files []string) (map[string]string, error) {
	chart, err := read(filepath.Join(folder, "Chart.yaml"))
	if err != nil {
		return nil, err
	}
	values, err := read(filepath.Join(folder, "values.yaml"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		over, err := read(file)
		if err != nil {
			return nil, err
		}
		merge(values, over)
	}
	if err := check(values, filepath.Join(folder, "values.schema.json")); err != nil {
		return nil, err
	}
	name := chart["name"].(string)
	all, names, err := parse(folder, name)
	if err != nil {
		return nil, err
	}
	base := name + "/templates"
	out := map[string]string{}
	for _, file := range names {
		var text bytes.Buffer
		if err := all.ExecuteTemplate(&text, base+"/"+file, object{
			"Values":   values,
			"Chart":    object{"Name": name, "Version": chart["version"], "AppVersion": chart["appVersion"]},
			"Release":  object{"Name": release, "Namespace": namespace, "Service": "Helm", "Revision": 1},
			"Template": object{"Name": base + "/" + file, "BasePath": base},
		}); err != nil {
			return nil, err
		}
		out[file] = text.String()
	}
	return out, nil
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: render CHART RELEASE NAMESPACE [VALUES.yaml…]")
		os.Exit(2)
	}
	out, err := render(os.Args[1], os.Args[2], os.Args[3], os.Args[4:])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
