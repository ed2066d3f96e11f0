"use strict";(self.rspackChunkselfsched_jupyter=self.rspackChunkselfsched_jupyter||[]).push([[1],{22(e,r,o){var a=o(23),t=o.n(a),n=o(24),s=(o.n(n))()(t());s.push([e.id,`/* Colours are JupyterLab's own variables, so that every theme fits. */

.jp-selfsched-panel {
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size1);
  overflow-y: auto;
  min-width: 260px;
}

.jp-selfsched-panel > div {
  padding: 8px 12px 24px;
}

.jp-selfsched-panel h2 {
  font-size: var(--jp-ui-font-size2);
  margin: 16px 0 6px;
  border-bottom: 1px solid var(--jp-border-color2);
}

.jp-selfsched-panel h3 {
  font-size: var(--jp-ui-font-size1);
  margin: 0;
  overflow-wrap: anywhere;
  unicode-bidi: isolate;
}

.jp-selfsched-job {
  border: 1px solid var(--jp-border-color2);
  border-radius: 4px;
  margin: 6px 0;
  padding: 8px;
}

.jp-selfsched-job p,
.jp-selfsched-panel p {
  margin: 4px 0;
  overflow-wrap: anywhere;
}

.jp-selfsched-quiet {
  color: var(--jp-ui-font-color1);
  opacity: 0.85;
}

.jp-selfsched-bar {
  appearance: none;
  width: 100%;
  height: 8px;
  border: 0;
  border-radius: 4px;
  overflow: hidden;
  background: var(--jp-layout-color3);
}

.jp-selfsched-bar::-webkit-progress-bar {
  background: var(--jp-layout-color3);
}

.jp-selfsched-bar::-webkit-progress-value {
  background: var(--jp-brand-color1);
}

.jp-selfsched-bar::-moz-progress-bar {
  background: var(--jp-brand-color1);
}

.jp-selfsched-trouble {
  border-left: 4px solid var(--jp-error-color1);
  background: var(--jp-layout-color2);
  padding: 6px 10px;
  margin: 8px 0;
}

.jp-selfsched-trouble.jp-mod-mild {
  border-left-color: var(--jp-info-color1);
}

.jp-selfsched-troubled {
  border-left: 4px solid var(--jp-warn-color1);
  background: var(--jp-layout-color2);
  margin: 8px 0;
  padding: 6px 10px 6px 24px;
}

.jp-selfsched-panel li {
  overflow-wrap: anywhere;
}

.jp-selfsched-buttons {
  display: flex;
  flex-wrap: wrap;
  gap: 4px;
  margin-top: 6px;
}

.jp-selfsched-panel button,
.jp-selfsched-toolbar button {
  background: var(--jp-layout-color2);
  color: var(--jp-ui-font-color1);
  border: 1px solid var(--jp-border-color1);
  border-radius: 3px;
  padding: 2px 8px;
  cursor: pointer;
  font-size: var(--jp-ui-font-size1);
}

.jp-selfsched-panel button:hover:not(:disabled) {
  background: var(--jp-layout-color3);
}

.jp-selfsched-panel button:focus-visible,
.jp-selfsched-panel input:focus-visible,
.jp-selfsched-panel select:focus-visible,
.jp-selfsched-panel summary:focus-visible,
.jp-selfsched-status:focus-visible {
  outline: 2px solid var(--jp-brand-color1);
  outline-offset: 1px;
}

.jp-selfsched-panel input,
.jp-selfsched-panel select,
.jp-selfsched-dialog input {
  background: var(--jp-input-background);
  color: var(--jp-ui-font-color1);
  border: 1px solid var(--jp-border-color1);
  padding: 2px 4px;
  width: 6em;
}

.jp-selfsched-panel select {
  width: auto;
  max-width: 100%;
}

.jp-selfsched-panel table {
  border-collapse: collapse;
  width: 100%;
}

.jp-selfsched-panel th,
.jp-selfsched-panel td {
  text-align: left;
  padding: 2px 6px 2px 0;
  vertical-align: top;
  overflow-wrap: break-word;
}

/* Names alone may break anywhere: they may be longer than the panel is wide. */
.jp-selfsched-panel td bdi {
  overflow-wrap: anywhere;
}

.jp-selfsched-field {
  display: inline-block;
  white-space: nowrap;
}

.jp-selfsched-panel .jp-selfsched-field input[type='number'] {
  width: 3.5em;
}

.jp-selfsched-spans {
  width: 100%;
  height: 44px;
  display: block;
}

.jp-selfsched-spans rect {
  fill: var(--jp-brand-color1);
}

.jp-selfsched-status {
  border: 0;
  background: transparent;
  color: inherit;
  font: inherit;
  cursor: pointer;
  padding: 0 6px;
  line-height: var(--jp-statusbar-height, 24px);
}

.jp-selfsched-status.jp-mod-trouble {
  background: var(--jp-error-color1);
  color: var(--jp-ui-inverse-font-color1, white);
}

.jp-selfsched-status.jp-mod-waiting {
  background: var(--jp-warn-color3, #ffcc80);
  color: black;
}

.jp-selfsched-dialog label {
  display: flex;
  align-items: center;
  justify-content: space-between;
  gap: 12px;
  margin: 6px 0;
}

.jp-selfsched-toolbar {
  display: flex;
  align-items: center;
}

.jp-selfsched-output {
  max-height: 240px;
  overflow: auto;
  white-space: pre-wrap;
  overflow-wrap: anywhere;
  background: var(--jp-layout-color2);
  color: var(--jp-ui-font-color1);
  padding: 6px;
  font-family: var(--jp-code-font-family);
  font-size: var(--jp-code-font-size);
}
`,""]),o.d(r,{},{A:s})},24(e){e.exports=function(e){var r=[];return r.toString=function(){return this.map(function(r){var o="",a=void 0!==r[5];return r[4]&&(o+="@supports (".concat(r[4],") {")),r[2]&&(o+="@media ".concat(r[2]," {")),a&&(o+="@layer".concat(r[5].length>0?" ".concat(r[5]):""," {")),o+=e(r),a&&(o+="}"),r[2]&&(o+="}"),r[4]&&(o+="}"),o}).join("")},r.i=function(e,o,a,t,n){"string"==typeof e&&(e=[[null,e,void 0]]);var s={};if(a)for(var p=0;p<this.length;p++){var l=this[p][0];null!=l&&(s[l]=!0)}for(var c=0;c<e.length;c++){var i=[].concat(e[c]);a&&s[i[0]]||(void 0!==n&&(void 0===i[5]||(i[1]="@layer".concat(i[5].length>0?" ".concat(i[5]):""," {").concat(i[1],"}")),i[5]=n),o&&(i[2]&&(i[1]="@media ".concat(i[2]," {").concat(i[1],"}")),i[2]=o),t&&(i[4]?(i[1]="@supports (".concat(i[4],") {").concat(i[1],"}"),i[4]=t):i[4]="".concat(t)),r.push(i))}},r}},23(e){e.exports=function(e){return e[1]}},16(e){var r=[];function o(e){for(var o=-1,a=0;a<r.length;a++)if(r[a].identifier===e){o=a;break}return o}function a(e,a){for(var t={},n=[],s=0;s<e.length;s++){var p=e[s],l=a.base?p[0]+a.base:p[0],c=t[l]||0,i="".concat(l," ").concat(c);t[l]=c+1;var d=o(i),u={css:p[1],media:p[2],sourceMap:p[3],supports:p[4],layer:p[5]};if(-1!==d)r[d].references++,r[d].updater(u);else{var f=function(e,r){var o=r.domAPI(r);return o.update(e),function(r){r?(r.css!==e.css||r.media!==e.media||r.sourceMap!==e.sourceMap||r.supports!==e.supports||r.layer!==e.layer)&&o.update(e=r):o.remove()}}(u,a);a.byIndex=s,r.splice(s,0,{identifier:i,updater:f,references:1})}n.push(i)}return n}e.exports=function(e,t){var n=a(e=e||[],t=t||{});return function(e){e=e||[];for(var s=0;s<n.length;s++){var p=o(n[s]);r[p].references--}for(var l=a(e,t),c=0;c<n.length;c++){var i=o(n[c]);0===r[i].references&&(r[i].updater(),r.splice(i,1))}n=l}}},18(e){var r={};e.exports=function(e,o){var a=function(e){if(void 0===r[e]){var o=document.querySelector(e);if(window.HTMLIFrameElement&&o instanceof window.HTMLIFrameElement)try{o=o.contentDocument.head}catch(e){o=null}r[e]=o}return r[e]}(e);if(!a)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");a.appendChild(o)}},20(e){e.exports=function(e){var r=document.createElement("style");return e.setAttributes(r,e.attributes),e.insert(r,e.options),r}},19(e,r,o){e.exports=function(e){var r=o.nc;r&&e.setAttribute("nonce",r)}},17(e){e.exports=function(e){if("u"<typeof document)return{update:function(){},remove:function(){}};var r=e.insertStyleElement(e);return{update:function(o){var a,t,n;a="",o.supports&&(a+="@supports (".concat(o.supports,") {")),o.media&&(a+="@media ".concat(o.media," {")),(t=void 0!==o.layer)&&(a+="@layer".concat(o.layer.length>0?" ".concat(o.layer):""," {")),a+=o.css,t&&(a+="}"),o.media&&(a+="}"),o.supports&&(a+="}"),(n=o.sourceMap)&&"u">typeof btoa&&(a+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(n))))," */")),e.styleTagTransform(a,r,e.options)},remove:function(){var e;null===(e=r).parentNode||e.parentNode.removeChild(e)}}}},21(e){e.exports=function(e,r){if(r.styleSheet)r.styleSheet.cssText=e;else{for(;r.firstChild;)r.removeChild(r.firstChild);r.appendChild(document.createTextNode(e))}}},15(e,r,o){var a=o(16),t=o.n(a),n=o(17),s=o.n(n),p=o(18),l=o.n(p),c=o(19),i=o.n(c),d=o(20),u=o.n(d),f=o(21),h=o.n(f),v=o(22),b={};b.styleTagTransform=h(),b.setAttributes=i(),b.insert=l().bind(null,"head"),b.domAPI=s(),b.insertStyleElement=u(),t()(v.A,b),v.A&&v.A.locals&&v.A.locals}}]);