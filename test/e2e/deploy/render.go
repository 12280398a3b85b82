// Renders the chart in deploy/helm as Helm does: Go's templates with the functions of sprig, and those of Helm that the chart uses. Helm
// itself is in none of Debian's packages.
//
//	go run render.go FOLDER < CHART.json
//
// CHART.json has Values, Chart and Release. It prints the documents of all templates.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := render(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func render(folder string) error {
	var chart map[string]interface{}
	if err := json.NewDecoder(os.Stdin).Decode(&chart); err != nil {
		return err
	}
	root := template.New("chart").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	delete(functions, "env")
	delete(functions, "expandenv")
	functions["include"] = func(name string, data interface{}) (string, error) {
		var text strings.Builder
		err := root.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	functions["fromYaml"] = func(text string) (map[string]interface{}, error) {
		value := map[string]interface{}{}
		err := yaml.Unmarshal([]byte(text), &value)
		return value, err
	}
	files, err := filepath.Glob(filepath.Join(folder, "templates", "*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if _, err := root.New(filepath.Base(file)).Funcs(functions).Parse(string(text)); err != nil {
			return err
		}
	}
	for _, file := range files {
		if filepath.Ext(file) != ".yaml" {
			continue
		}
		var text strings.Builder
		if err := root.ExecuteTemplate(&text, filepath.Base(file), chart); err != nil {
			return err
		}
		// As Helm does for a value that is not there.
		fmt.Printf("---\n%s\n", strings.ReplaceAll(text.String(), "<no value>", ""))
	}
	return nil
}
