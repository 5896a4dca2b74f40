package main

import (
	"net/http"
)

// modelCard is a model as OpenAI's API lists it, and some facts of this one.
type modelCard struct {
	ID            string `json:"id"`
	Object        string `json:"object"`
	Created       int64  `json:"created"`
	OwnedBy       string `json:"owned_by"`
	ContextLength int    `json:"context_length"`
	Parameters    uint64 `json:"parameters"`
	Chat          bool   `json:"chat"` // it has a chat template
}

func (e *engine) card() modelCard {
	return modelCard{
		ID: e.id, Object: "model", Created: e.opened.Unix(), OwnedBy: "waveinfer",
		ContextLength: e.context, Parameters: e.info.Parameters, Chat: e.info.ChatFamily != "",
	}
}

// models is GET /v1/models.
func (s *service) models(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []modelCard{s.engine.card()}})
	return nil
}

// oneModel is GET /v1/models/{id}.
func (s *service) oneModel(w http.ResponseWriter, r *http.Request) error {
	if err := s.checkModel(r.PathValue("id")); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, s.engine.card())
	return nil
}

// checkModel refuses requests for other models than the one that there is.
func (s *service) checkModel(id string) error {
	switch id {
	case s.engine.id:
		return nil
	case "":
		return badRequest("model", "missing_parameter", "model is missing; here it is %q", s.engine.id)
	}
	return newProblem(http.StatusNotFound, "invalid_request_error", "model", "model_not_found",
		"the model "+id+" does not exist here; "+s.engine.id+" does")
}
